//! Generated C: compiled without a warning, with sanitizers, and run.

mod c_glue;
mod c_stubs_of;
mod random_calls;

use c_stubs_of::generate;
use rpc_idl_tests::random::{defined, definitions, text, Def, Random};
use rpc_idl_tests::{COUNT, SEED};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn gcc(dir: &Path, sources: &[&str], more: &[&str]) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
        .args(["-Wall", "-Wextra", "-Werror", "-o", "program", "-I."])
        .args(more)
        .arg("-I")
        .arg(&own)
        .args(sources.iter().map(|source| {
            let ours = own.join(source);
            if ours.exists() {
                ours
            } else {
                source.into()
            }
        }))
        .current_dir(dir)
        .output()
        .expect("gcc is installed: see ci/deps");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program, at addresses that are the same each time where that may be asked for: where they are very random
/// (`vm.mmap_rnd_bits` of 32) they are now and then those that the sanitizers of gcc 12 need.
fn program(dir: &Path) -> Command {
    let own = dir.join("program");
    let fixed = Command::new("setarch").args(["-R", "true"]).output();
    if !fixed.is_ok_and(|output| output.status.success()) {
        return Command::new(own);
    }
    let mut command = Command::new("setarch");
    command.arg("-R").arg(own);
    command
}

/// F1 for C: in, out and inout, bulk and plain, structs, unions, lists, strings, one-way.
#[test]
fn c_clients_call_c_servers() {
    let dir = tempfile::tempdir().expect("a directory");
    let interface = Path::new(env!("CARGO_MANIFEST_DIR")).join("idl/everything.x");
    generate(dir.path(), "everything", &std::fs::read_to_string(interface).expect("readable"));
    let generated = ["everything_codec.c", "everything_client.c", "everything_server.c"];
    gcc(dir.path(), &[&["calls.c", "loopback.c"], &generated[..]].concat(), &[]);
    let output = program(dir.path()).output().expect("it was built");
    assert!(
        output.status.success() && output.stdout == b"all calls answered\n",
        "{output:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Random procedures with random values, as `random_program.rs` has them for Rust.
#[test]
fn random_c_calls_arrive_and_return() {
    let dir = tempfile::tempdir().expect("a directory");
    let calls = dir.path().join("calls");
    c_glue::write(dir.path(), &calls, 8);
    gcc(dir.path(), &[&["program.c", "loopback.c"], &c_glue::SOURCES[..]].concat(), &[]);
    let output = program(dir.path()).args(["both", "random"]).arg(&calls).output();
    let output = output.expect("it was built");
    assert!(
        output.status.success() && output.stdout == b"all calls answered\n",
        "RPC_IDL_TESTS_SEED={SEED}: {output:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Names that generated code might take for its own, and types that are used before they are defined.
#[test]
fn c_of_all_sorts_of_names_compiles() {
    let dir = tempfile::tempdir().expect("a directory");
    for (stem, used) in [("names", ""), ("alike", "long long lowest = LOWEST;\n")] {
        let program = format!("#include \"{stem}.h\"\n{used}int main(void) {{ return 0; }}\n");
        std::fs::write(dir.path().join("uses.c"), program).expect("ours");
        let interface = Path::new(env!("CARGO_MANIFEST_DIR")).join("idl").join(stem);
        let text = std::fs::read_to_string(interface.with_extension("x")).expect("readable");
        generate(dir.path(), stem, &text);
        let generated = ["codec", "client", "server"].map(|part| format!("{stem}_{part}.c"));
        let generated: Vec<&str> = generated.iter().map(String::as_str).collect();
        let sources = [&["uses.c", "loopback.c"], &generated[..]].concat();
        gcc(dir.path(), &sources, &["-Wno-unused", "-pedantic"]);
    }
}

/// The header is for C++ as well: whatever the names are.
#[test]
fn the_header_is_one_of_cpp() {
    let dir = tempfile::tempdir().expect("a directory");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    for stem in ["names", "alike", "everything"] {
        let interface = own.join("idl").join(stem).with_extension("x");
        generate(dir.path(), stem, &std::fs::read_to_string(interface).expect("readable"));
        let source = format!("#include \"{stem}.h\"\nint main() {{ return 0; }}\n");
        std::fs::write(dir.path().join("main.cc"), source).expect("ours");
        for standard in ["-std=c++11", "-std=c++20"] {
            let output = Command::new("g++")
                .args([
                    standard,
                    "-fsyntax-only",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-Wno-unused",
                    "-I.",
                ])
                .arg("-I")
                .arg(own.join("../shrimp-rpc/include"))
                .arg("main.cc")
                .current_dir(dir.path())
                .output()
                .expect("g++ is installed: see ci/deps");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stem}, {standard}: {said}");
        }
    }
}

/// What was checked is what is used: the compiler does not take shared memory for what it was when it was read, and
/// so does not read it again in place of the copy.
#[test]
fn the_c_codec_looks_at_shared_memory_once() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("shrimp_codec.h"), rpc_idl::emit::c::CODEC_HEADER)
        .expect("the directory is ours");
    for optimised in ["-O1", "-O2", "-O3"] {
        let output = Command::new("gcc")
            .args(["-std=gnu11", optimised, "-Wall", "-Wextra", "-Werror", "-I.", "-o", "program"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c/once.c"))
            .current_dir(dir.path())
            .output()
            .expect("gcc is installed: see ci/deps");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = program(dir.path()).output().expect("it was built").stdout;
        assert_eq!(String::from_utf8_lossy(&said), "items 1, elements 1\n", "{optimised}");
    }
}

/// The C codec agrees with the oracle on random values of random types, and refuses damaged ones
/// without a fault that a sanitizer sees, a leak included.
#[test]
fn the_c_codec_agrees_with_the_oracle() {
    let dir = tempfile::tempdir().expect("a directory");
    let defs = definitions(SEED, COUNT);
    generate(dir.path(), "random", &text(&defs));
    let mut table = String::from(
        "#include \"random.h\"\n\
         int again(uint32_t index, shrimp_reader *r, shrimp_writer *count, void **out)\n{\n\
         int rc = SHRIMP_CODEC_BAD_VALUE;\nswitch (index) {\n",
    );
    let tried = |def: &Def| !matches!(def, Def::Typedef(_));
    for (index, _) in defs.iter().enumerate().filter(|(_, def)| tried(def)) {
        write!(
            table,
            "case {index}: {{ t{index} v; rc = shrimp_get_t{index}(r, &v);\n\
             if (rc == 0 && r->left == 0 && (rc = shrimp_put_t{index}(count, &v)) == 0) {{\n\
             *out = malloc(count->len + 1);\n\
             shrimp_writer w = shrimp_writer_at(*out, count->len);\n\
             rc = shrimp_put_t{index}(&w, &v); }}\n\
             shrimp_free_t{index}(&v); break; }}\n"
        )
        .expect("a string takes it");
    }
    table.push_str("}\nreturn rc;\n}\n");
    std::fs::write(dir.path().join("table.c"), table).expect("the directory is ours");
    gcc(dir.path(), &["batch.c", "table.c", "random_codec.c"], &["-DSHRIMP_CODEC_NETWORK"]);

    let mut child = program(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was built");
    let random = &mut Random::new(SEED + 3);
    let mut values: Vec<(Vec<u8>, bool)> = Vec::new();
    let mut input = Vec::new();
    for _ in 0..20 {
        for index in (0..COUNT).filter(|index| tried(&defs[*index])) {
            let mut bytes = Vec::new();
            defined(random, &defs, index, &mut bytes);
            // A char of C is sent as its own sign has it; every third value is damaged.
            let damaged = random.below(3) == 0 && !bytes.is_empty();
            if damaged {
                let at = random.below(bytes.len() as u64) as usize;
                if random.below(2) == 0 {
                    bytes.truncate(at);
                } else {
                    bytes[at] ^= 1 << random.below(8);
                }
            }
            input.extend((index as u32).to_ne_bytes());
            input.extend((bytes.len() as u32).to_ne_bytes());
            input.extend(&bytes);
            values.push((bytes, damaged));
        }
    }
    let mut stdin = child.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let mut output = Vec::new();
    child.stdout.take().expect("it is piped").read_to_end(&mut output).expect("readable");
    writer.join().expect("it does not panic").expect("the program reads all");
    assert!(child.wait().expect("it ends").success(), "see the sanitizer's report above");

    let mut rest = &output[..];
    let mut same = 0;
    for (bytes, damaged) in &values {
        let (len, after) = rest.split_first_chunk::<4>().expect("an answer for each value");
        let len = u32::from_ne_bytes(*len);
        if len == u32::MAX {
            rest = after;
            assert!(damaged, "{bytes:?} is refused");
            continue;
        }
        let (again, after) = after.split_at(len as usize);
        rest = after;
        if !damaged {
            assert_eq!(again, bytes);
            same += 1;
        }
    }
    assert!(rest.is_empty() && same > 10 * COUNT / 2, "{same} values came back");
}
