//! What the dynamic loader will do with a program: enough of ELF to know whether a library can
//! be preloaded into it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What kind of program a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An ELF program with a dynamic loader.
    Dynamic(Elf),
    /// An ELF program without one: nothing can be preloaded.
    Static(Elf),
    /// A script, with the interpreter its first line names.
    Script(PathBuf),
    /// Neither. The kernel may know it (binfmt_misc) or not.
    Unknown,
}

/// The parts of the header that must agree between a program and a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// 32 or 64.
    pub(crate) bits: u8,
    /// `e_machine`.
    pub(crate) machine: u16,
    /// The loader's path, for a program.
    pub(crate) interpreter: Option<PathBuf>,
    /// The libraries that it names itself, in their order; of a 64-bit one.
    pub(crate) needed: Vec<OsString>,
}

/// Longest table of program headers that is looked at; real ones have about a dozen entries.
const MAX_PROGRAM_HEADERS: u16 = 256;
/// Longest dynamic section that is looked at, in bytes, and longest name of a library.
const MAX_DYNAMIC_LEN: u64 = 64 * 1024;
const MAX_NAME_LEN: u64 = 256;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Looks at a file.
pub(crate) fn inspect(path: &Path) -> std::io::Result<Kind> {
    let mut file = std::fs::File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(512).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let words: Vec<&[u8]> = line
            .split(|&byte| byte == b' ' || byte == b'\t')
            .filter(|word| !word.is_empty())
            .collect();
        return Ok(match interpreter_of(&words) {
            Some(interpreter) => Kind::Script(interpreter),
            None => Kind::Unknown,
        });
    }
    Ok(parse(&head, |buffer, at| file.read_exact_at(buffer, at)).unwrap_or(Kind::Unknown))
}

/// The program that runs a script: the word after `#!`, or the one `env` will look for.
fn interpreter_of(words: &[&[u8]]) -> Option<PathBuf> {
    let first = Path::new(OsStr::from_bytes(words.first()?));
    if first.file_name()? == "env" {
        let named =
            words.iter().skip(1).find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        if let Some(found) = named.and_then(|name| search(OsStr::from_bytes(name)).ok()) {
            return Some(found);
        }
    }
    Some(first.to_owned())
}

fn parse(head: &[u8], read_at: impl Fn(&mut [u8], u64) -> std::io::Result<()>) -> Option<Kind> {
    if head.get(..4)? != b"\x7fELF" || *head.get(5)? != 1 {
        return None; // not ELF, or big-endian: no machine of ours
    }
    let bits = match head.get(4)? {
        1 => 32,
        2 => 64,
        _ => return None,
    };
    let machine = u16_at(head, 18)?;
    let (table, entry_len, entries) = if bits == 64 {
        (u64_at(head, 32)?, u16_at(head, 54)?, u16_at(head, 56)?)
    } else {
        (u64::from(u32_at(head, 28)?), u16_at(head, 42)?, u16_at(head, 44)?)
    };
    let mut interpreter = None;
    let mut dynamic = None;
    let mut loads = Vec::new();
    for i in 0..entries.min(MAX_PROGRAM_HEADERS) {
        let mut entry = [0u8; 56];
        let len = usize::from(entry_len).min(entry.len());
        let at = table.checked_add(u64::from(i) * u64::from(entry_len))?;
        read_at(entry.get_mut(..len)?, at).ok()?;
        match u32_at(&entry, 0)? {
            PT_LOAD if bits == 64 => loads.push(Segment::of(&entry)?),
            PT_DYNAMIC => dynamic = Some(Segment::of(&entry)?),
            PT_INTERP => {
                let (at, len) = if bits == 64 {
                    (u64_at(&entry, 8)?, u64_at(&entry, 32)?)
                } else {
                    (u64::from(u32_at(&entry, 4)?), u64::from(u32_at(&entry, 16)?))
                };
                let mut name = vec![0u8; usize::try_from(len).ok().filter(|&len| len <= 4096)?];
                read_at(&mut name, at).ok()?;
                while name.last() == Some(&0) {
                    name.pop();
                }
                interpreter = Some(PathBuf::from(OsStr::from_bytes(&name)));
            }
            _ => {}
        }
    }
    let named = dynamic.as_ref().filter(|_| bits == 64);
    let needed = named.and_then(|dynamic| needed(dynamic, &loads, &read_at)).unwrap_or_default();
    let dynamic = dynamic.is_some();
    let elf = Elf { bits, machine, interpreter, needed };
    // A static position-independent program has a dynamic section but nobody to read it.
    let is_program_with_loader = elf.interpreter.is_some();
    Some(if dynamic && is_program_with_loader { Kind::Dynamic(elf) } else { Kind::Static(elf) })
}

/// Where a part of a 64-bit file is, and goes to.
struct Segment {
    at: u64,
    address: u64,
    len: u64,
}

impl Segment {
    fn of(entry: &[u8]) -> Option<Segment> {
        let field = |at| u64_at(entry, at);
        Some(Segment { at: field(8)?, address: field(16)?, len: field(32)? })
    }
}

/// The names of libraries in a dynamic section.
fn needed(
    dynamic: &Segment,
    loads: &[Segment],
    read_at: impl Fn(&mut [u8], u64) -> std::io::Result<()>,
) -> Option<Vec<OsString>> {
    let mut section = vec![0u8; usize::try_from(dynamic.len.min(MAX_DYNAMIC_LEN)).ok()?];
    read_at(&mut section, dynamic.at).ok()?;
    let entries: Vec<(u64, u64)> = section
        .chunks_exact(16)
        .filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)))
        .collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let name = |offset: u64| {
        let address = strings.checked_add(offset)?;
        let (load, into) = loads.iter().find_map(|load| {
            let into = address.checked_sub(load.address).filter(|into| *into < load.len)?;
            Some((load, into))
        })?;
        let len = (load.len - into).min(MAX_NAME_LEN);
        let mut bytes = vec![0u8; usize::try_from(len).ok()?];
        read_at(&mut bytes, load.at.checked_add(into)?).ok()?;
        let name = bytes.split(|byte| *byte == 0).next()?;
        Some(OsStr::from_bytes(name).to_owned())
    };
    let named = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    Some(named.filter_map(|(_, offset)| name(*offset)).collect())
}

/// Why no file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchError {
    /// No such file anywhere.
    NotFound,
    /// A file, but not one we may execute.
    NotExecutable,
}

/// Finds a program as execvp(3) does: a name with a slash is a path, else `PATH` is searched.
pub(crate) fn search(program: &OsStr) -> Result<PathBuf, SearchError> {
    let runs = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match (runs(&path), path.exists()) {
            (true, _) => Ok(path),
            (false, true) => Err(SearchError::NotExecutable),
            (false, false) => Err(SearchError::NotFound),
        };
    }
    let mut seen = false;
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    for dir in std::env::split_paths(&path) {
        let file = dir.join(program);
        if runs(&file) {
            return Ok(file);
        }
        seen |= file.is_file();
    }
    Err(if seen { SearchError::NotExecutable } else { SearchError::NotFound })
}

/// Whether the loader runs the file in secure-execution mode, in which it ignores `LD_PRELOAD`:
/// it changes user or group, or has file capabilities.
pub(crate) fn is_privileged(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let us = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let setuid = meta.mode() & libc::S_ISUID != 0 && meta.uid() != us;
    let setgid = meta.mode() & libc::S_ISGID != 0 && meta.gid() != group;
    let mut value = [0u8; 64];
    let capabilities =
        us != 0 && rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok();
    setuid || setgid || capabilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_is_dynamic_and_of_this_machine() {
        let Kind::Dynamic(elf) = inspect(Path::new("/proc/self/exe")).unwrap() else {
            panic!("the test program is not dynamic");
        };
        assert_eq!(elf.bits, 64);
        let names_libc = |name: &OsString| name.as_bytes().starts_with(b"libc.so");
        assert!(elf.needed.iter().any(names_libc), "{:?}", elf.needed);
        assert!(elf.interpreter.unwrap().exists());
    }

    #[test]
    fn scripts_name_their_interpreter_also_through_env() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        std::fs::write(&file, "#! /bin/sh -e\nexit\n").unwrap();
        assert_eq!(inspect(&file).unwrap(), Kind::Script("/bin/sh".into()));
        std::fs::write(&file, "#!/usr/bin/env -S A=b sh\n").unwrap();
        let Kind::Script(found) = inspect(&file).unwrap() else { panic!("not a script") };
        assert_eq!(found.file_name().unwrap(), "sh");
    }

    #[test]
    fn damaged_headers_are_unknown_and_never_a_panic() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let head = &program[..512];
        let read = |buffer: &mut [u8], at: u64| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let end = at.saturating_add(buffer.len());
            match program.get(at..end) {
                Some(bytes) => {
                    buffer.copy_from_slice(bytes);
                    Ok(())
                }
                None => Err(std::io::Error::other("past the end")),
            }
        };
        for len in 0..head.len() {
            let _ = parse(&head[..len], read);
        }
        for at in 0..64 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = head.to_vec();
                damaged[at] = value;
                let _ = parse(&damaged, read);
            }
        }
        assert_eq!(parse(b"hello", read), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_told_from_one_that_cannot_run() {
        assert_eq!(search(OsStr::new("no-such-program-anywhere")), Err(SearchError::NotFound));
        assert_eq!(search(OsStr::new("/etc/passwd")), Err(SearchError::NotExecutable));
        assert!(search(OsStr::new("sh")).is_ok());
    }
}
