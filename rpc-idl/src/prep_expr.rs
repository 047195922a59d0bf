//! The conditions of `#if` lines.

const MAX_DEPTH: usize = 40;

struct Evaluator<'a> {
    rest: &'a str,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    depth: usize,
}

/// The value of a condition. `lookup` gives the text of a macro.
pub(crate) fn evaluate(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<i128, String> {
    nested(text, lookup, 0)
}

fn nested(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
    depth: usize,
) -> Result<i128, String> {
    let mut evaluator = Evaluator { rest: text, lookup, depth };
    let value = evaluator.binary(0)?;
    match evaluator.rest.trim() {
        "" => Ok(value),
        rest => Err(format!("`{}` is not expected", crate::lex::shown(rest))),
    }
}

/// Operators by rising precedence.
const LEVELS: [&[&str]; 4] = [&["||"], &["&&"], &["==", "!="], &["<=", ">=", "<", ">"]];

impl Evaluator<'_> {
    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(token) {
            Some(after) => {
                self.rest = after;
                true
            }
            None => false,
        }
    }

    fn binary(&mut self, level: usize) -> Result<i128, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|o| self.eat(o)) {
            let right = self.binary(level + 1)?;
            left = i128::from(match *operator {
                "||" => left != 0 || right != 0,
                "&&" => left != 0 && right != 0,
                "==" => left == right,
                "!=" => left != right,
                "<=" => left <= right,
                ">=" => left >= right,
                "<" => left < right,
                _ => left > right,
            });
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<i128, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("it is nested too deep".to_owned());
        }
        let value = self.primary();
        self.depth -= 1;
        value
    }

    fn primary(&mut self) -> Result<i128, String> {
        if self.eat("!") {
            return Ok(i128::from(self.unary()? == 0));
        }
        if self.eat("-") {
            return Ok(self.unary()?.saturating_neg());
        }
        if self.eat("(") {
            let value = self.binary(0)?;
            return if self.eat(")") { Ok(value) } else { Err("`)` is missing".to_owned()) };
        }
        let word = self.word();
        if word.is_empty() {
            return Err("a value is missing".to_owned());
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
            return crate::lex::number_value(digits)
                .ok_or_else(|| format!("`{}` is no number", crate::lex::shown(word)));
        }
        if word == "defined" {
            let parenthesis = self.eat("(");
            let name = self.word();
            if name.is_empty() || (parenthesis && !self.eat(")")) {
                return Err("`defined` needs a name".to_owned());
            }
            return Ok(i128::from((self.lookup)(name).is_some()));
        }
        match (self.lookup)(word) {
            Some(text) => nested(&text, self.lookup, self.depth),
            None => Ok(0),
        }
    }
}

impl<'a> Evaluator<'a> {
    fn word(&mut self) -> &'a str {
        let rest = self.rest.trim_start();
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_have_the_value_that_cpp_gives_them() {
        let lookup = |name: &str| match name {
            "ONE" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            "LOOP" => Some("LOOP".to_owned()),
            _ => None,
        };
        for (text, value) in [
            ("1", 1),
            ("ONE && !NONE", 1),
            ("defined(ONE) && defined NONE || 0", 0),
            ("defined(EMPTY)", 1),
            ("(2 > 1) == 1", 1),
            ("0x10 >= 16UL", 1),
            ("-1 < 0 && 3 != 3", 0),
        ] {
            assert_eq!(evaluate(text, &lookup), Ok(value), "{text}");
        }
        for text in ["", "1 +", "(1", "LOOP", "EMPTY", "defined", "0x", &"(".repeat(5000)] {
            assert!(evaluate(text, &lookup).is_err(), "{text}");
        }
    }
}
