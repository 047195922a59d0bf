//! `shrimpc`: compiler and formatter for interface files.
//!
//! A shell around the crate `rpc-idl`: arguments, files, exit codes.

use clap::{Args, Parser, Subcommand, ValueEnum};
use rpc_idl::{BuildError, Builder};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Everything was done.
const DONE: u8 = 0;
/// A file has errors, or is not formatted.
const REFUSED: u8 = 1;
/// A file could not be read or written. (2 is clap's, for the arguments.)
const IO: u8 = 3;

/// Compiles interface files in the RPC language (RFC 4506, RFC 5531) to stubs.
///
/// The language is that of rpcgen's .x files, with in, out and inout parameters, several
/// parameters, one-way procedures and documentation comments. FILE may be - for standard input.
#[derive(Debug, Parser)]
#[command(
    name = "shrimpc",
    version,
    after_help = "\
Exit status: 0 done; 1 the interface has errors, or fmt --check found differences; 2 wrong
arguments; 3 a file could not be read or written.

Examples:
  shrimpc rust kv.x -o src/kv.rs        Rust stubs for SHRIMP RPC
  shrimpc c kv.x --out-dir gen          kv.h, kv_client.c, kv_server.c for SHRIMP RPC
  shrimpc sunrpc kv.x -o src/kv.rs      Rust stubs for Sun RPC, from the same file
  shrimpc fmt --check *.x               is everything in the common layout?"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Rust stubs for SHRIMP RPC: types, client, server trait, dispatcher.
    Rust(RustArgs),
    /// Rust stubs for Sun RPC: types with XDR, client, server trait, dispatcher.
    Sunrpc(RustArgs),
    /// C for SHRIMP RPC: STEM.h, STEM_codec.c, STEM_client.c, STEM_server.c, shrimp_codec.h.
    C {
        #[command(flatten)]
        read: ReadArgs,
        /// Interface file.
        file: PathBuf,
        /// Write into this directory.
        #[arg(long, value_name = "DIR", default_value = ".")]
        out_dir: PathBuf,
    },
    /// Rust types with their XDR codec, and no stubs.
    Types(RustArgs),
    /// Reports errors and warnings, and generates nothing.
    Check {
        #[command(flatten)]
        read: ReadArgs,
        /// Interface files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Lays files out in the common way, in place.
    Fmt {
        /// Change nothing; exit with 1 and name the files that are laid out otherwise.
        #[arg(long)]
        check: bool,
        /// Interface files; - reads standard input and writes standard output.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct ReadArgs {
    /// Define a macro, as for cpp.
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    define: Vec<String>,
    /// Look for included files in this directory too.
    #[arg(short = 'I', value_name = "DIR")]
    include: Vec<PathBuf>,
    /// A type that is defined elsewhere: its name in the file, and the path of the Rust type.
    #[arg(long, value_name = "NAME=PATH")]
    extern_type: Vec<String>,
    /// Parameters that may be longer than so many bytes travel in place.
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    bulk_threshold: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Strings {
    /// `String`: what is no UTF-8 is refused.
    Utf8,
    /// `Vec<u8>`: anything goes.
    Bytes,
}

#[derive(Debug, Args)]
struct RustArgs {
    #[command(flatten)]
    read: ReadArgs,
    /// Interface file.
    file: PathBuf,
    /// Write here [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Path of the runtime in the generated code.
    #[arg(long, value_name = "PATH")]
    runtime: Option<String>,
    /// What a string becomes.
    #[arg(long, value_enum, default_value = "utf8")]
    strings: Strings,
    /// Leave out clients and servers for async code.
    #[arg(long)]
    no_async: bool,
    /// Derive one more trait for every type.
    #[arg(long, value_name = "PATH")]
    derive: Vec<String>,
}

/// What ends the program early: a message and an exit status.
struct Failure(String, u8);

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        let status = if matches!(error, BuildError::Interface(_)) { REFUSED } else { IO };
        Failure(error.to_string(), status)
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Rust(args) => rust(Builder::shrimp_rpc(), &args),
        Command::Sunrpc(args) => rust(Builder::sun_rpc(), &args),
        Command::Types(args) => rust(Builder::types(), &args),
        Command::C { read, file, out_dir } => c(&read, &file, &out_dir),
        Command::Check { read, files } => check(&read, &files),
        Command::Fmt { check, files } => fmt(check, &files),
    };
    match result {
        Ok(()) => ExitCode::from(DONE),
        Err(Failure(message, status)) => {
            let message = message.trim_end();
            if status == IO {
                eprintln!("shrimpc: {message}");
            } else {
                eprintln!("{message}");
            }
            ExitCode::from(status)
        }
    }
}

impl ReadArgs {
    fn builder(&self, mut builder: Builder) -> Result<Builder, Failure> {
        for define in &self.define {
            let (name, value) = define.split_once('=').unwrap_or((define, "1"));
            builder = builder.define(name, value);
        }
        for dir in &self.include {
            builder = builder.include_dir(dir);
        }
        for given in &self.extern_type {
            let Some((name, path)) = given.split_once('=') else {
                let message = format!("--extern-type {given}: write NAME=PATH");
                return Err(Failure(message, 2));
            };
            builder = builder.extern_type(name, path);
        }
        Ok(builder.bulk_threshold(self.bulk_threshold))
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(path).map(|content| bytes = content)
    };
    read.map_err(|error| {
        let message = format!(
            "cannot read {}: {error}; name an interface file, or - for standard input",
            path.display()
        );
        Failure(message, IO)
    })?;
    // A byte that is no UTF-8 shows up in a message of the compiler, or stays in its comment.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// As [`read`], of a file that is to be written again: no byte of it is to be lost.
fn read_exactly(path: &Path) -> Result<String, Failure> {
    let text = read(path)?;
    if text.contains(char::REPLACEMENT_CHARACTER) {
        let message = format!(
            "{} is not in UTF-8: shrimpc fmt would lose what is not; convert it first (iconv -f latin1 -t utf-8)",
            path.display()
        );
        return Err(Failure(message, REFUSED));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = if path == Path::new("-") {
        std::io::stdout().lock().write_all(text.as_bytes())
    } else {
        std::fs::write(path, text)
    };
    written.map_err(|error| {
        let message = format!(
            "cannot write {}: {error}; name another place with -o or --out-dir",
            path.display()
        );
        Failure(message, IO)
    })
}

/// Name of a file in messages and in generated code.
fn shown(path: &Path) -> String {
    if path == Path::new("-") { "<stdin>".to_owned() } else { path.to_string_lossy().into_owned() }
}

fn rust(builder: Builder, args: &RustArgs) -> Result<(), Failure> {
    let mut builder = args.read.builder(builder)?;
    if let Some(path) = &args.runtime {
        builder = builder.runtime(path);
    }
    if matches!(args.strings, Strings::Bytes) {
        builder = builder.strings_as_bytes();
    }
    if args.no_async {
        builder = builder.no_async();
    }
    for path in &args.derive {
        builder = builder.derive(path);
    }
    let text = read(&args.file)?;
    let (compilation, _) = builder.read_text(&shown(&args.file), &text);
    let generated = builder.generate(&compilation)?;
    eprint!("{}", compilation.render()); // warnings
    write(args.output.as_deref().unwrap_or(Path::new("-")), &generated)
}

fn c(args: &ReadArgs, file: &Path, out_dir: &Path) -> Result<(), Failure> {
    let text = read(file)?;
    let (compilation, _) = args.builder(Builder::types())?.read_text(&shown(file), &text);
    let Some(model) = compilation.model() else {
        return Err(Failure(compilation.render(), REFUSED));
    };
    eprint!("{}", compilation.render()); // warnings
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let stem = if stem == "-" { "stdin".into() } else { stem };
    for (name, text) in rpc_idl::emit::c::generate(model, &stem).by_name(&stem) {
        write(&out_dir.join(name), text)?;
    }
    Ok(())
}

fn check(args: &ReadArgs, files: &[PathBuf]) -> Result<(), Failure> {
    let builder = args.builder(Builder::types())?;
    let mut refused = 0;
    for file in files {
        let text = read(file)?;
        let (compilation, _) = builder.read_text(&shown(file), &text);
        eprint!("{}", compilation.render());
        refused += usize::from(compilation.has_errors());
    }
    match refused {
        0 => Ok(()),
        n => Err(Failure(format!("{n} of {} files have errors", files.len()), REFUSED)),
    }
}

fn fmt(check: bool, files: &[PathBuf]) -> Result<(), Failure> {
    let mut refused = Vec::new();
    for file in files {
        let text = read_exactly(file)?;
        let formatted = match rpc_idl::format(&shown(file), &text) {
            Ok(formatted) => formatted,
            Err(error) => {
                eprint!("{error}");
                refused.push(format!("{}: has errors", shown(file)));
                continue;
            }
        };
        if check {
            if formatted != text {
                refused.push(format!("{}: is laid out otherwise; run shrimpc fmt", shown(file)));
            }
        } else if formatted != text || file == Path::new("-") {
            write(file, &formatted)?;
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(Failure(refused.join("\n"), REFUSED)) }
}
