//! Who we are and who else there is, as the launcher says it in the environment.

use vmmc::Token;

/// One process's place in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the job: unique on the machine, part of the names of all exports. At most 64 bytes.
    pub id: String,
    /// Secret that links within the job ask for.
    pub token: Token,
    /// Number of nodes, not counting a host process.
    pub size: u32,
    /// This process's node number: `0..size`, or `size` for the host process.
    pub node: u32,
    /// Whether the job has a host process (number `size`).
    pub host: bool,
    /// Process type at the start; `None`: not set yet, nothing can be sent before it is.
    pub ptype: Option<i32>,
}

/// Environment of a rank. The launcher sets all of them.
pub mod env {
    /// [`super::Job::id`].
    pub const ID: &str = "SHRIMP_NX_JOB";
    /// [`super::Job::token`], 32 hexadecimal digits.
    pub const TOKEN: &str = "SHRIMP_NX_TOKEN";
    /// [`super::Job::size`].
    pub const SIZE: &str = "SHRIMP_NX_SIZE";
    /// [`super::Job::node`].
    pub const NODE: &str = "SHRIMP_NX_NODE";
    /// [`super::Job::host`]: `1` or absent.
    pub const HOST: &str = "SHRIMP_NX_HOST";
    /// [`super::Job::ptype`]; absent: 0 for nodes, not set for the host.
    pub const PTYPE: &str = "SHRIMP_NX_PTYPE";
}

/// A variable of the launcher that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name}={value:?} is not understood: expected {expected}; start the program with `shrimp run`"
)]
pub struct JobError {
    /// Environment variable.
    pub name: &'static str,
    /// What it is set to; empty when it is absent.
    pub value: String,
    /// What it should be.
    pub expected: &'static str,
}

impl Job {
    /// The job that the environment tells of; `None` when this process was not started as a rank.
    ///
    /// # Errors
    /// [`JobError`] when a variable is missing or nonsense.
    pub fn from_env() -> Result<Option<Job>, JobError> {
        Job::from_lookup(&|name| std::env::var(name).ok())
    }

    /// The same, from any source of variables.
    ///
    /// # Errors
    /// As [`Job::from_env`].
    pub fn from_lookup(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Job>, JobError> {
        let Some(id) = get(env::ID) else { return Ok(None) };
        let number = |name: &'static str| {
            let value = get(name).unwrap_or_default();
            value.parse::<u32>().map_err(|_| JobError { name, value, expected: "a number" })
        };
        let (size, node) = (number(env::SIZE)?, number(env::NODE)?);
        let host = get(env::HOST).as_deref() == Some("1");
        let text = get(env::TOKEN).unwrap_or_default();
        let token = parse_token(&text).ok_or(JobError {
            name: env::TOKEN,
            value: "(secret)".into(),
            expected: "32 hexadecimal digits",
        })?;
        let ptype = match get(env::PTYPE) {
            None => (node < size).then_some(0),
            Some(value) => Some(value.parse().map_err(|_| JobError {
                name: env::PTYPE,
                value,
                expected: "a process type, 0 or more",
            })?),
        };
        Ok(Some(Job { id, token, size, node, host, ptype }))
    }

    /// The variables that [`Job::from_env`] reads, for the child that `self` describes.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let token = self.token.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut variables = vec![
            (env::ID, self.id.clone()),
            (env::TOKEN, token),
            (env::SIZE, self.size.to_string()),
            (env::NODE, self.node.to_string()),
        ];
        if self.host {
            variables.push((env::HOST, "1".into()));
        }
        if let Some(ptype) = self.ptype {
            variables.push((env::PTYPE, ptype.to_string()));
        }
        variables
    }
}

fn parse_token(text: &str) -> Option<Token> {
    let mut token = [0u8; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(Token(token))
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_the_launcher_sets_is_what_the_rank_reads() {
        for (host, ptype) in [(false, Some(3)), (true, Some(0))] {
            let job = Job { id: "j1".into(), token: Token([7; 16]), size: 4, node: 2, host, ptype };
            let variables = job.to_env();
            let get = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
            };
            assert_eq!(Job::from_lookup(&get), Ok(Some(job)));
        }
        assert_eq!(Job::from_lookup(&|_| None), Ok(None));
    }
}
