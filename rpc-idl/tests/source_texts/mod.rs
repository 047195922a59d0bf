//! The texts in the sources that a person may read, so that none is forgotten in a golden file.

use std::collections::BTreeSet;
use std::path::Path;

/// The texts of the front end: whatever has a space in it, and is no test's and no panic's.
pub(crate) fn find(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("the sources are there") {
        let path = entry.expect("readable").path();
        if path.ends_with("emit") {
            continue; // emitters find no fault
        }
        if path.is_dir() {
            find(&path, found);
        } else {
            let text = std::fs::read_to_string(&path).expect("readable");
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            found.extend(literals(text).into_iter().filter(|text| text.trim().contains(' ')));
        }
    }
}

/// The string literals of Rust code, but for those of `expect`.
fn literals(mut code: &str) -> Vec<String> {
    let mut literals = Vec::new();
    while let Some(at) = code.find(['"', '/', '\'']) {
        let (before, here) = code.split_at(at);
        code = if here.starts_with("//") {
            here.split_once('\n').map_or("", |(_, rest)| rest)
        } else if let Some(inner) = here.strip_prefix('"') {
            let (literal, rest) = literal(inner);
            if !before.trim_end().ends_with("expect(") {
                literals.push(literal);
            }
            rest
        } else if let Some(inner) = here.strip_prefix('\'') {
            // A character, or the name of a lifetime.
            let len = if inner.starts_with('\\') { 2 } else { 1 };
            let end = inner.char_indices().nth(len).filter(|(_, c)| *c == '\'');
            &inner[end.map_or(0, |(end, _)| end + 1)..]
        } else {
            &here[1..]
        };
    }
    literals
}

/// The literal that begins behind its quotation mark, unescaped, and what follows it.
fn literal(inner: &str) -> (String, &str) {
    let mut literal = String::new();
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => break,
            '\\' => match rest.next() {
                Some('n') => literal.push('\n'),
                Some('\n') => rest = rest.as_str().trim_start().chars(),
                Some(c) => literal.push(c),
                None => {}
            },
            c => literal.push(c),
        }
    }
    (literal, rest.as_str())
}

/// Whether a line has a text, with anything where values are put in.
pub(crate) fn is_shown(text: &str, lines: &[&str]) -> bool {
    let text = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut pieces = Vec::new();
    for part in text.split('{') {
        let fixed = part.split_once('}').map_or(part, |(_, fixed)| fixed);
        pieces.push(fixed.replace('\u{1}', "{").replace('\u{2}', "}"));
    }
    lines.iter().any(|line| {
        let mut rest = *line;
        pieces.iter().all(|piece| match rest.find(piece.trim_matches('\n')) {
            Some(at) => {
                rest = &rest[at..];
                true
            }
            None => false,
        })
    })
}
