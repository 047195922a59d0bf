//! Where the parser goes on after an error: at the next value, parameter, member, version or definition.
//!
//! Each of these goes forward, unless it stands before what ends the list; so every loop that calls them ends.

use super::{KEYWORDS, Parsed, Parser, Reported};
use crate::lex::Kind;

impl Parser<'_> {
    /// Goes on behind a broken definition, which began at word `start`: at the next one.
    pub(super) fn next_definition(&mut self, start: usize) {
        if self.at == start {
            self.advance();
        }
        // A definition at the start of a line ends any braces that were left open.
        let before = |it: &Self, open: bool| it.begins_definition(!open);
        self.skip(start, before, b";");
        self.leave_unread(start);
    }

    /// Goes on behind a broken version, which began at word `start`: at the next one, or before what ends the program.
    pub(super) fn next_version(&mut self, start: usize) {
        if self.at == start {
            self.advance();
        }
        let before = |it: &Self, open: bool| {
            it.ends_early() || it.is_ident("version") || (!open && it.is_punct(b'}'))
        };
        self.skip(start, before, b";");
        self.leave_unread(start);
    }

    /// Goes on behind a broken member, which began at word `start`: after the next `;`, or before the brace that ends
    /// the list.
    pub(super) fn next_member(&mut self, start: usize) {
        self.skip(start, |it, open| it.ends_early() || (!open && it.is_punct(b'}')), b";");
        self.leave_unread(start);
    }

    /// Members or procedures, one at least, and the brace that ends them; behind a broken one it goes on. `early`: what is
    /// missing where they are `over` without it, and the hint; `none`: the same where there is none.
    pub(super) fn list<T>(
        &mut self,
        over: impl Fn(&Self) -> bool,
        early: (&'static str, &'static str),
        item: impl Fn(&mut Self) -> Parsed<T>,
        none: (&'static str, &'static str),
    ) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        let mut broken = false;
        while !self.is_punct(b'}') {
            if over(self) {
                return self.syntax(early.0, early.1);
            }
            let start = self.at;
            match item(self) {
                Ok(item) => items.push(item),
                Err(Reported) => {
                    broken = true;
                    self.next_member(start);
                }
            }
        }
        if items.is_empty() && !broken {
            return self.syntax(none.0, none.1);
        }
        self.advance();
        Ok(items)
    }

    /// Goes on behind a broken value of an enum, as [`Parser::next_member`]; a `,` ends it, too.
    pub(super) fn next_value(&mut self, start: usize) {
        self.skip(start, |it, open| it.ends_early() || (!open && it.is_punct(b'}')), b",;");
        self.leave_unread(start);
    }

    /// Goes on behind a broken parameter, which began at word `start`: before the next `,`, or before what ends the list
    /// or its procedure.
    pub(super) fn next_parameter(&mut self, start: usize) {
        let ends = |it: &Self| matches!(it.word().kind, Kind::Punct(b',' | b')' | b';' | b'}'));
        self.skip(start, |it, open| it.ends_early() || (!open && ends(it)), b"");
    }

    /// Skips words up to one that `before` accepts, which is told whether braces are open since word `start`; or
    /// behind a mark of `behind` when none are.
    fn skip(&mut self, start: usize, before: impl Fn(&Self, bool) -> bool, behind: &[u8]) {
        let mut open = self.open_since(start);
        while self.word().kind != Kind::End && !before(self, open > 0) {
            match self.advance().kind {
                Kind::Punct(b'{') => open += 1,
                Kind::Punct(b'}') => open = open.saturating_sub(1),
                Kind::Punct(mark) if open == 0 && behind.contains(&mark) => break,
                _ => {}
            }
        }
    }

    /// Whether no brace can follow that ends what is open: the file ends, or a definition begins at the start of a line.
    pub(super) fn ends_early(&self) -> bool {
        self.word().kind == Kind::End || self.diagnostics.is_full() || self.begins_definition(false)
    }

    /// Whether a definition begins here: by its keyword, if nothing is open; otherwise also by where it stands, and
    /// what follows it, because the type of a member may begin with the same word.
    fn begins_definition(&self, nothing_open: bool) -> bool {
        if self.word().kind != Kind::Ident {
            return false;
        }
        let has_body = match self.text(self.word()) {
            "const" | "typedef" | "program" => true,
            "enum" | "struct" => self.ahead(2).kind == Kind::Punct(b'{'),
            "union" => self.text(self.ahead(2)) == "switch",
            _ => return false,
        };
        nothing_open || (has_body && self.sources.line_column(self.word().span).1 == 1)
    }

    /// Braces that are open since word `start`.
    fn open_since(&self, start: usize) -> usize {
        self.stream.words[start..self.at].iter().fold(0usize, |open, word| match word.kind {
            Kind::Punct(b'{') => open + 1,
            Kind::Punct(b'}') => open.saturating_sub(1),
            _ => open,
        })
    }

    /// Notes the names that may have been defined from word `start` to here: those behind a keyword of definitions, and
    /// those before what follows the name of a value, a constant or a typedef.
    fn leave_unread(&mut self, start: usize) {
        let words = &self.stream.words[start..self.at];
        for (index, word) in words.iter().enumerate() {
            let text = self.text(*word);
            if word.kind != Kind::Ident || KEYWORDS.contains(&text) {
                continue;
            }
            let behind = index.checked_sub(1).map(|last| words[last]).is_some_and(|last| {
                let keyword = ["const", "enum", "struct", "union", "program", "version"];
                last.kind == Kind::Punct(b'{') || keyword.contains(&self.text(last))
            });
            let next = words.get(index + 1).unwrap_or(&self.stream.words[self.at]);
            let before = matches!(next.kind, Kind::Punct(b'=' | b',' | b';' | b'[' | b'<' | b'}'));
            if behind || before {
                self.unread.insert(text.to_owned());
            }
        }
    }
}
