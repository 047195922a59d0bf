//! Names of the interface file as names of other languages.

use std::collections::HashSet;

/// Words that cannot be names in Rust without `r#`.
const RUST_KEYWORDS: [&str; 49] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "union", "unsafe", "unsized",
    "use", "virtual", "where", "while", "yield",
];

/// Words that cannot be names in Rust even with `r#`.
const RUST_HARD: [&str; 5] = ["self", "Self", "super", "crate", "_"];

/// Parts of a name: split at underscores and where a small letter meets a capital one.
fn parts(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for word in name.split('_').filter(|w| !w.is_empty()) {
        let mut part = String::new();
        let mut small = false;
        for c in word.chars() {
            if c.is_ascii_uppercase() && small {
                parts.push(std::mem::take(&mut part));
            }
            small = c.is_ascii_lowercase();
            part.push(c);
        }
        parts.push(part);
    }
    parts
}

/// `UpperCamelCase`, for types and variants.
#[must_use]
pub fn camel(name: &str) -> String {
    let mut out = String::new();
    for part in parts(name) {
        let mut chars = part.chars();
        if let Some(first) = chars.next() {
            out.push(first.to_ascii_uppercase());
            out.push_str(&chars.as_str().to_ascii_lowercase());
        }
    }
    guarded(out, "X")
}

/// `snake_case`, for functions, fields and parameters, usable in Rust.
#[must_use]
pub fn snake(name: &str) -> String {
    let name = guarded(parts(name).join("_").to_ascii_lowercase(), "x");
    if RUST_HARD.contains(&name.as_str()) {
        format!("{name}_")
    } else if RUST_KEYWORDS.contains(&name.as_str()) {
        format!("r#{name}")
    } else {
        name
    }
}

/// `UPPER_CASE`, for constants.
#[must_use]
pub fn upper(name: &str) -> String {
    guarded(parts(name).join("_").to_ascii_uppercase(), "X")
}

fn guarded(name: String, prefix: &str) -> String {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("{prefix}{name}")
    } else {
        name
    }
}

/// A set of names in which each is used once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    used: HashSet<String>,
}

impl Scope {
    pub(crate) fn with(reserved: &[&str]) -> Scope {
        Scope { used: reserved.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// The name, with underscores behind it if it is taken.
    pub(crate) fn claim(&mut self, name: &str) -> String {
        let mut name = name.to_owned();
        while !self.used.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// The name, with a number behind it if it is taken: for names that are to be parts of others.
    pub(crate) fn claim_part(&mut self, name: &str) -> String {
        let name = name.trim_end_matches('_');
        let numbered = (2..).map(|number| format!("{name}{number}"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        names.find(|name| self.used.insert(name.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_the_form_of_their_language() {
        for (name, camel_case, snake_case, upper_case) in [
            ("NFS3_OK", "Nfs3Ok", "nfs3_ok", "NFS3_OK"),
            ("kv_v1", "KvV1", "kv_v1", "KV_V1"),
            ("readArgs", "ReadArgs", "read_args", "READ_ARGS"),
            ("_x1_", "X1", "x1", "X1"),
            ("_9", "X9", "x9", "X9"),
            ("type", "Type", "r#type", "TYPE"),
            ("self", "Self", "self_", "SELF"),
            ("__", "X", "x", "X"),
        ] {
            assert_eq!(camel(name), camel_case);
            assert_eq!(snake(name), snake_case);
            assert_eq!(upper(name), upper_case);
        }
    }

    #[test]
    fn a_taken_name_gets_an_underscore() {
        let mut scope = Scope::with(&["Vec"]);
        assert_eq!(scope.claim("Vec"), "Vec_");
        assert_eq!(scope.claim("A"), "A");
        assert_eq!(scope.claim("A"), "A_");
    }
}
