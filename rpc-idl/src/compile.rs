//! One file from text to model.

use crate::ast::File;
use crate::check::{self, Settings};
use crate::diag::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS, Severity};
use crate::model::Model;
use crate::parse;
use crate::prep::{Loader, NoFiles, Preprocessor};
use crate::source::SourceMap;

/// What a compilation depends on besides the file.
#[derive(Clone, Debug)]
pub struct Options {
    /// Macros: name and value, as for `cpp -D`. rpcgen's `RPC_HDR` is defined from the start.
    pub defines: Vec<(String, String)>,
    /// Types defined elsewhere: name in the file, path of the Rust type.
    pub externs: Vec<(String, String)>,
    /// Parameters that may be longer than so many bytes travel in place over SHRIMP RPC.
    pub bulk_threshold: u64,
}

impl Options {
    /// The usual options.
    #[must_use]
    pub fn new() -> Options {
        Options {
            defines: vec![("RPC_HDR".to_owned(), "1".to_owned())],
            externs: Vec::new(),
            bulk_threshold: 256,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// A file that was read, parsed and checked.
#[derive(Debug)]
pub struct Compilation {
    sources: SourceMap,
    diagnostics: Vec<Diagnostic>,
    file: File,
    model: Model,
}

/// Compiles the text of a file that includes no others.
#[must_use]
pub fn compile(name: &str, text: &str, options: &Options) -> Compilation {
    compile_with(name, text, options, &NoFiles)
}

/// Compiles the text of a file; `loader` finds what it includes.
#[must_use]
pub fn compile_with(name: &str, text: &str, options: &Options, loader: &dyn Loader) -> Compilation {
    let mut sources = SourceMap::new();
    let mut diagnostics = Diagnostics::default();
    let main = sources.add(name, text);
    let mut preprocessor = Preprocessor::new(&mut sources, &mut diagnostics, loader);
    for (name, value) in &options.defines {
        preprocessor.define(name, value);
    }
    let stream = preprocessor.run(main);
    let file = parse::parse(&sources, &stream, &mut diagnostics);
    let settings =
        Settings { externs: options.externs.clone(), bulk_threshold: options.bulk_threshold };
    let model = if diagnostics.is_full() {
        Model::default()
    } else {
        check::check(&file, &settings, &mut diagnostics)
    };
    Compilation { sources, diagnostics: diagnostics.into_sorted(), file, model }
}

impl Compilation {
    /// All errors and warnings in the order of the text.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Whether nothing can be generated.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|d| d.severity == Severity::Error)
    }

    /// All errors and warnings with their excerpts, as text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text: String =
            self.diagnostics.iter().map(|d| d.render(&self.sources) + "\n").collect();
        if self.diagnostics.len() >= MAX_DIAGNOSTICS {
            text.push_str(&format!("stopped after {MAX_DIAGNOSTICS} errors\n"));
        }
        text
    }

    /// The syntax tree: without errors, all of the file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The files that were read, the first one first.
    #[must_use]
    pub fn sources(&self) -> &SourceMap {
        &self.sources
    }

    /// What the file means, if it means something.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        (!self.has_errors()).then_some(&self.model)
    }
}
