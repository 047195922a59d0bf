//! The compiler for build scripts, and for the command.

use crate::compile::{Compilation, Options, compile_with};
use crate::emit::c;
use crate::emit::rust::{self, RustOptions, Stubs};
use crate::prep::Loader;
use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why nothing was generated. `{:?}`, by which a build script's `main` prints the error that it returns, is the text for
/// people, too: excerpts of the file have many lines.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A file could not be read.
    #[error("cannot read {path}: {error}; name an interface file")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {error}; name a directory for it with Builder::out_dir")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// The interface file has errors: here they are.
    #[error("{0}")]
    Interface(String),
    /// Not run by cargo as a build script, and no directory was named.
    #[error("OUT_DIR is not set; name a directory with Builder::out_dir")]
    NoOutDir,
}

impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Finds included files beside the including one and in some directories.
#[derive(Debug, Default)]
pub(crate) struct FileLoader {
    dirs: Vec<PathBuf>,
    loaded: RefCell<Vec<PathBuf>>,
}

impl Loader for FileLoader {
    fn load(&self, name: &str, from: &str) -> Result<(String, String), String> {
        let beside = Path::new(from).parent().unwrap_or(Path::new("")).to_owned();
        let mut reason = String::from("not found");
        for dir in [&beside].into_iter().chain(&self.dirs) {
            let path = dir.join(name);
            match std::fs::read(&path) {
                Ok(bytes) => {
                    self.loaded.borrow_mut().push(path.clone());
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    return Ok((path.to_string_lossy().into_owned(), text));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => reason = format!("{}: {error}", path.display()),
            }
        }
        Err(reason)
    }
}

/// Generates stubs from an interface file, in a build script: of Rust, or of C ([`Builder::compile_c`]).
///
/// ```no_run
/// // In `main` of build.rs:
/// rpc_idl::Builder::shrimp_rpc().compile("kv.x").unwrap_or_else(|error| panic!("{error}"));
/// ```
///
/// and in the library: `mod kv { include!(concat!(env!("OUT_DIR"), "/kv.rs")); }`
#[derive(Clone, Debug)]
pub struct Builder {
    options: Options,
    rust: RustOptions,
    include_dirs: Vec<PathBuf>,
    out_dir: Option<PathBuf>,
}

impl Builder {
    /// Stubs for SHRIMP RPC.
    #[must_use]
    pub fn shrimp_rpc() -> Builder {
        Builder::new(Stubs::Shrimp)
    }

    /// Stubs for Sun RPC.
    #[must_use]
    pub fn sun_rpc() -> Builder {
        Builder::new(Stubs::SunRpc)
    }

    /// Types and their codec alone.
    #[must_use]
    pub fn types() -> Builder {
        Builder::new(Stubs::None)
    }

    fn new(stubs: Stubs) -> Builder {
        Builder {
            options: Options::new(),
            rust: RustOptions::new(stubs),
            include_dirs: Vec::new(),
            out_dir: None,
        }
    }

    /// Defines a macro, as `cpp -D` does.
    #[must_use]
    pub fn define(mut self, name: &str, value: &str) -> Builder {
        self.options.defines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Looks for included files here too.
    #[must_use]
    pub fn include_dir(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.include_dirs.push(dir.into());
        self
    }

    /// Takes a type of the file from elsewhere: the path of a Rust type with `xdr::Encode` and
    /// `xdr::Decode`.
    #[must_use]
    pub fn extern_type(mut self, name: &str, path: &str) -> Builder {
        self.options.externs.push((name.to_owned(), path.to_owned()));
        self
    }

    /// Lets parameters that may be longer than so many bytes travel in place; 256 otherwise.
    #[must_use]
    pub fn bulk_threshold(mut self, bytes: u64) -> Builder {
        self.options.bulk_threshold = bytes;
        self
    }

    /// Sets the path of the runtime in generated code: `::shrimp_rpc` or `::vrpc`
    /// otherwise.
    #[must_use]
    pub fn runtime(mut self, path: &str) -> Builder {
        path.clone_into(&mut self.rust.runtime);
        self
    }

    /// Makes `string` a `Vec<u8>`, for peers that do not send UTF-8.
    #[must_use]
    pub fn strings_as_bytes(mut self) -> Builder {
        self.rust.strings_as_bytes = true;
        self
    }

    /// Leaves out the clients and servers for `async` code.
    #[must_use]
    pub fn no_async(mut self) -> Builder {
        self.rust.asynchronous = false;
        self
    }

    /// Derives more traits for every type, such as `serde::Serialize`.
    #[must_use]
    pub fn derive(mut self, path: &str) -> Builder {
        self.rust.derives.push(path.to_owned());
        self
    }

    /// Writes here, and not to `OUT_DIR`.
    #[must_use]
    pub fn out_dir(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.out_dir = Some(dir.into());
        self
    }

    /// Reads and checks a file; also gives the files that it includes.
    ///
    /// # Errors
    /// [`BuildError::Read`]. Errors in the file are in the compilation.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<(Compilation, Vec<PathBuf>), BuildError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path)
            .map_err(|error| BuildError::Read { path: path.to_owned(), error })?;
        Ok(self.read_text(&path.to_string_lossy(), &String::from_utf8_lossy(&bytes)))
    }

    /// Checks the text of a file.
    #[must_use]
    pub fn read_text(&self, name: &str, text: &str) -> (Compilation, Vec<PathBuf>) {
        let loader = FileLoader { dirs: self.include_dirs.clone(), loaded: RefCell::default() };
        let compilation = compile_with(name, text, &self.options, &loader);
        (compilation, loader.loaded.into_inner())
    }

    /// The Rust code for a compiled file.
    ///
    /// # Errors
    /// [`BuildError::Interface`].
    pub fn generate(&self, compilation: &Compilation) -> Result<String, BuildError> {
        let Some(model) = compilation.model() else {
            return Err(BuildError::Interface(compilation.render()));
        };
        let name = compilation.sources().file_name(0);
        let name = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
        Ok(rust::generate(model, &self.rust, &name))
    }

    /// Compiles `path`, writes `STEM.rs`, tells cargo what it depends on and about warnings, and
    /// gives the path of what was written.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn compile(&self, path: impl AsRef<Path>) -> Result<PathBuf, BuildError> {
        let path = path.as_ref();
        let out_dir = self.target_dir()?;
        let compilation = self.read_for_cargo(path)?;
        let text = self.generate(&compilation)?;
        warn(path, &compilation);
        let target = out_dir.join(path.file_stem().unwrap_or_default()).with_extension("rs");
        write(&target, &text)?;
        Ok(target)
    }

    /// As [`Builder::compile`], for SHRIMP RPC in C: writes `STEM.h`, `STEM_codec.c`, `STEM_client.c`, `STEM_server.c` and `shrimp_codec.h`,
    /// and gives their paths in this order. What concerns Rust alone has no effect. The files want `shrimp_rpc.h`, and the program
    /// `libshrimp_rpc`.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn compile_c(&self, path: impl AsRef<Path>) -> Result<[PathBuf; 5], BuildError> {
        let path = path.as_ref();
        let out_dir = self.target_dir()?;
        let compilation = self.read_for_cargo(path)?;
        let Some(model) = compilation.model() else {
            return Err(BuildError::Interface(compilation.render()));
        };
        warn(path, &compilation);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let files = c::generate(model, &stem);
        let files = files.by_name(&stem).map(|(name, text)| (out_dir.join(name), text));
        files.iter().try_for_each(|(target, text)| write(target, text))?;
        Ok(files.map(|(target, _)| target))
    }

    fn target_dir(&self) -> Result<PathBuf, BuildError> {
        match &self.out_dir {
            Some(dir) => Ok(dir.clone()),
            None => std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or(BuildError::NoOutDir),
        }
    }

    /// Reads a file, and tells cargo what it depends on.
    fn read_for_cargo(&self, path: &Path) -> Result<Compilation, BuildError> {
        println!("cargo::rerun-if-changed={}", path.display());
        let (compilation, included) = self.read(path)?;
        for file in included {
            println!("cargo::rerun-if-changed={}", file.display());
        }
        Ok(compilation)
    }
}

fn warn(path: &Path, compilation: &Compilation) {
    for warning in compilation.diagnostics() {
        println!("cargo::warning={}: {}", path.display(), warning.message);
    }
}

fn write(target: &Path, text: &str) -> Result<(), BuildError> {
    std::fs::write(target, text)
        .map_err(|error| BuildError::Write { path: target.to_owned(), error })
}
