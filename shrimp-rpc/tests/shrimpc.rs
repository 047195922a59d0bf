//! The command `shrimpc`: what it writes, what it says, and its exit status.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const INTERFACE: &str = "\
const MAX = LIMIT;
typedef string line<MAX>;
program LOG {
    version LOG_V1 {
        /** Adds a line. */
        void ADD(in line text) = 1;
    } = 1;
} = 0x20000123;
";

fn shrimpc(dir: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shrimpc"));
    command.args(arguments).current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was built");
    // Who does not read it may have ended.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("it ends")
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("log.x"), INTERFACE).expect("ours");
    dir
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn stubs_are_written_where_they_are_wanted() {
    let dir = place();
    let at = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("written");
    let rust = done(&shrimpc(dir.path(), &["rust", "-D", "LIMIT=100", "log.x"], b""));
    assert!(rust.contains("pub struct LogV1Client") && rust.contains("pub trait LogV1Async"));
    assert!(rust.contains("pub const MAX: u32 = 100;"));
    let arguments =
        ["rust", "-DLIMIT=100", "log.x", "-o", "log.rs", "--no-async", "--derive", "Eq"];
    assert_eq!(done(&shrimpc(dir.path(), &arguments, b"")), "");
    assert!(!at("log.rs").contains("Async"));
    let arguments = ["sunrpc", "-DLIMIT=100", "--runtime", "::mine", "-"];
    let rust = done(&shrimpc(dir.path(), &arguments, INTERFACE.as_bytes()));
    assert!(rust.contains("::mine::xdr::rpc") && rust.contains("from <stdin>"), "{rust}");
    let rust =
        done(&shrimpc(dir.path(), &["types", "-DLIMIT=9", "--strings", "bytes", "log.x"], b""));
    assert!(rust.contains("Vec<u8>") && !rust.contains("Client"), "{rust}");
    // What a type derives anyway it does not derive twice.
    let arguments = ["types", "--derive", "Eq", "--derive", "std::hash::Hash", "-"];
    let rust = done(&shrimpc(dir.path(), &arguments, b"enum e { A };"));
    assert!(rust.contains("#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]"), "{rust}");
    std::fs::create_dir(dir.path().join("gen")).expect("ours");
    done(&shrimpc(dir.path(), &["c", "-DLIMIT=100", "log.x", "--out-dir", "gen"], b""));
    for name in ["log.h", "log_codec.c", "log_client.c", "log_server.c", "shrimp_codec.h"] {
        assert!(!at(&format!("gen/{name}")).is_empty());
    }
    assert!(at("gen/log.h").contains("int add_1("));
}

#[test]
fn what_is_included_is_looked_for_where_it_is_said_to_be() {
    let dir = place();
    std::fs::create_dir(dir.path().join("more")).expect("ours");
    std::fs::write(dir.path().join("more/limit.x"), "#define LIMIT 7\n").expect("ours");
    let with = format!("#include \"limit.x\"\n{INTERFACE}");
    std::fs::write(dir.path().join("with.x"), with).expect("ours");
    assert_eq!(shrimpc(dir.path(), &["check", "with.x"], b"").status.code(), Some(1));
    let rust = done(&shrimpc(dir.path(), &["rust", "-I", "more", "with.x"], b""));
    assert!(rust.contains("pub const MAX: u32 = 7;"));
}

#[test]
fn each_kind_of_failure_has_its_exit_status() {
    let dir = place();
    let run = |arguments: &[&str]| shrimpc(dir.path(), arguments, b"");
    let refused = run(&["check", "log.x"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(
        said.contains("log.x:1:13") && said.contains("LIMIT") && said.contains("1 of 1"),
        "{said}"
    );
    let refused = run(&["rust", "log.x", "-o", "log.rs"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(!dir.path().join("log.rs").exists(), "nothing is written");
    assert_eq!(run(&["check", "-DLIMIT=1", "log.x"]).status.code(), Some(0));
    for wrong in [&["check"][..], &["rust"], &["rust", "log.x", "--extern-type", "line"], &["c++"]]
    {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    for unreadable in [&["check", "gone.x"][..], &["fmt", "."]] {
        let output = run(unreadable);
        assert_eq!(output.status.code(), Some(3), "{unreadable:?}");
        assert!(text(&output.stderr).starts_with("shrimpc: cannot read"), "{output:?}");
    }
    let output = run(&["rust", "-DLIMIT=1", "log.x", "-o", "no/such/place.rs"]);
    assert_eq!(output.status.code(), Some(3));
    // The texts of all failures that are not the compiler's.
    let missing = "No such file or directory (os error 2)";
    for (arguments, said) in [
        (
            &["rust", "-DLIMIT=1", "log.x", "-o", "no/such/place.rs"][..],
            format!(
                "shrimpc: cannot write no/such/place.rs: {missing}; name another place with -o or --out-dir\n"
            ),
        ),
        (
            &["check", "gone.x"],
            format!(
                "shrimpc: cannot read gone.x: {missing}; name an interface file, or - for standard input\n"
            ),
        ),
        (
            &["check", "-DLIMIT=1", "--extern-type", "line", "log.x"],
            "--extern-type line: write NAME=PATH\n".to_owned(),
        ),
    ] {
        assert_eq!(text(&run(arguments).stderr), said);
    }
}

#[test]
fn files_are_laid_out_in_place_or_only_named() {
    let dir = place();
    let at = |name: &str| std::fs::read(dir.path().join(name)).expect("it is there");
    let run = |arguments: &[&str]| shrimpc(dir.path(), arguments, b"");
    done(&run(&["fmt", "log.x"]));
    assert_eq!(done(&run(&["fmt", "--check", "log.x"])), "");
    std::fs::write(dir.path().join("wild.x"), "const   A=1 ;").expect("ours");
    let named = run(&["fmt", "--check", "log.x", "wild.x"]);
    assert_eq!(named.status.code(), Some(1));
    assert!(text(&named.stderr).contains("wild.x: is laid out otherwise"), "{named:?}");
    assert_eq!(at("wild.x"), b"const   A=1 ;");
    done(&run(&["fmt", "wild.x"]));
    assert_eq!(at("wild.x"), b"const A = 1;\n");
    assert_eq!(done(&shrimpc(dir.path(), &["fmt", "-"], b"const B=2;")), "const B = 2;\n");
    // What it would lose stays as it is.
    let latin = b"/* caf\xe9 */\nconst   A=1 ;";
    std::fs::write(dir.path().join("latin.x"), latin).expect("ours");
    let refused = run(&["fmt", "latin.x"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("UTF-8"), "{refused:?}");
    assert_eq!(at("latin.x"), latin);
    assert_eq!(run(&["check", "latin.x"]).status.code(), Some(0), "a comment may be anything");
}

/// F1: what a build script makes of an interface in C is what the command makes.
#[test]
fn a_build_script_makes_the_same_c_stubs() {
    let dir = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/find.x");
    let made = rpc_idl::Builder::shrimp_rpc().out_dir(dir.path()).compile_c(&file).unwrap();
    let other = tempfile::tempdir().unwrap();
    done(&shrimpc(other.path(), &["c", file.to_str().unwrap(), "--out-dir", "."], b""));
    for path in &made {
        let same = other.path().join(path.file_name().unwrap());
        assert!(std::fs::read(path).unwrap() == std::fs::read(&same).unwrap(), "{path:?}");
    }
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), made.len());
}
