//! Who we are and who else there is, as the launcher says it in the environment.
//!
//! The variables are removed once they are read: a program that a node starts is not that node.

use std::sync::Arc;
use vmmc::Token;
use vmmc::control::network::is_node_name;

/// Longest name of a job, in bytes.
pub const MAX_ID: usize = 64;

/// Most nodes of a job: more than a machine runs, and small enough that a mistyped number does
/// not fork until the machine stops.
pub const MAX_NODES: u32 = 4096;

/// One process's place in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the job: unique on the machine, part of the names of all exports. Letters, digits,
    /// `-` and `.`, at most [`MAX_ID`] bytes.
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
    /// Joins a job in which its node has a process already.
    pub late: Option<Late>,
    /// Of each NX node the node of the cluster that it runs on, by the cluster file's names, and then of the host process if
    /// there is one; empty: all run on one machine.
    pub hosts: Arc<[String]>,
}

/// How far the job is that a process joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Some nodes may have no process yet.
    Starting,
    /// Every node has, or had, a process.
    Begun {
        /// The number of the process that has started this one.
        by: u32,
    },
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
    /// [`super::Job::late`]: `starting` or `begun:NUMBER`; absent for the first process of a node.
    pub const LATE: &str = "SHRIMP_NX_LATE";
    /// [`super::Job::hosts`], separated by commas; absent: one machine.
    pub const HOSTS: &str = "SHRIMP_NX_HOSTS";
    /// Rows and columns of the application, `RxC`; absent: one row.
    pub const SHAPE: &str = "SHRIMP_NX_SHAPE";
    /// Number of the inherited descriptor of the [control channel](crate::job::control); absent:
    /// there is none.
    pub const CONTROL: &str = "SHRIMP_NX_CONTROL";
    /// All of them.
    pub const ALL: [&str; 10] = [ID, TOKEN, SIZE, NODE, HOST, PTYPE, LATE, HOSTS, SHAPE, CONTROL];
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
        check_id(&id)?;
        let text = get(env::SIZE).unwrap_or_default();
        let size = parse_size(&text).ok_or(JobError {
            name: env::SIZE,
            value: text,
            expected: "1 to 4096",
        })?;
        let text = get(env::NODE).unwrap_or_default();
        let node = text.parse().ok().filter(|&node: &u32| node <= size).ok_or(JobError {
            name: env::NODE,
            value: text,
            expected: "a node number, or the size for the host",
        })?;
        let host = get(env::HOST).as_deref() == Some("1");
        let text = get(env::TOKEN).unwrap_or_default();
        let token = parse_token(&text).ok_or_else(bad_token)?;
        let ptype = match get(env::PTYPE) {
            None => (node < size).then_some(0),
            Some(value) => {
                let ptype = value.parse().ok().filter(|&ptype: &i32| ptype >= 0);
                let expected = "a process type, 0 or more";
                Some(ptype.ok_or(JobError { name: env::PTYPE, value, expected })?)
            }
        };
        let late = match get(env::LATE) {
            None => None,
            Some(value) => {
                let late = match value.strip_prefix("begun:") {
                    Some(by) => by.parse().ok().map(|by| Late::Begun { by }),
                    None => (value == "starting").then_some(Late::Starting),
                };
                let expected =
                    "starting, or begun: with the number of the process that has started it";
                Some(late.ok_or(JobError { name: env::LATE, value, expected })?)
            }
        };
        let hosts = match get(env::HOSTS) {
            None => Arc::default(),
            Some(value) => {
                let hosts: Arc<[String]> = value.split(',').map(str::to_owned).collect();
                let expected = "as many names of nodes as there are processes, separated by commas";
                if hosts.len() != size as usize + usize::from(host)
                    || !hosts.iter().all(|host| is_node_name(host))
                {
                    return Err(JobError { name: env::HOSTS, value, expected });
                }
                hosts
            }
        };
        Ok(Some(Job { id, token, size, node, host, ptype, late, hosts }))
    }

    /// A job of its own with `size` nodes, from the view of node 0.
    ///
    /// # Errors
    /// When the kernel has no random bytes (getrandom(2)).
    pub fn new(size: u32) -> rustix::io::Result<Job> {
        let mut random = [0_u8; 20];
        let got = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        if got != random.len() {
            return Err(rustix::io::Errno::IO);
        }
        let mut token = [0; 16];
        token.copy_from_slice(&random[..16]);
        let id = format!("{}-{}", rustix::process::getpid().as_raw_nonzero(), hex(&random[16..]));
        let (token, hosts) = (Token(token), Arc::default());
        Ok(Job { id, token, size, node: 0, host: false, ptype: Some(0), late: None, hosts })
    }

    /// Of `size` nodes the host of each: as many on each as goes, in the order in which they are named.
    #[must_use]
    pub fn spread(hosts: &[String], size: u32) -> Vec<String> {
        let of = |node: u32| {
            let at = u64::from(node) * hosts.len() as u64 / u64::from(size.max(1));
            hosts.get(at as usize).cloned()
        };
        (0..size).filter_map(of).collect()
    }

    /// Name, size and token in one word, for launchers that pass words (PMI).
    #[must_use]
    pub fn to_word(&self) -> String {
        format!("{}:{}:{}", self.id, self.size, hex(&self.token.0))
    }

    /// The inverse of [`Job::to_word`], from the view of `node`.
    ///
    /// # Errors
    /// [`JobError`] when the word is not one.
    pub fn from_word(word: &str, node: u32) -> Result<Job, JobError> {
        let bad = || JobError { name: "job", value: word.into(), expected: "id:size:token" };
        let mut parts = word.split(':');
        let (Some(id), Some(size), Some(token), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        check_id(id)?;
        let size = parse_size(size).ok_or_else(bad)?;
        let token = parse_token(token).ok_or_else(bad_token)?;
        let (id, hosts) = (id.into(), Arc::default());
        Ok(Job { id, token, size, node, host: false, ptype: Some(0), late: None, hosts })
    }

    /// The variables that [`Job::from_env`] reads, for the child that `self` describes.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let token = hex(&self.token.0);
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
        match self.late {
            None => {}
            Some(Late::Starting) => variables.push((env::LATE, "starting".into())),
            Some(Late::Begun { by }) => variables.push((env::LATE, format!("begun:{by}"))),
        }
        if !self.hosts.is_empty() {
            variables.push((env::HOSTS, self.hosts.join(",")));
        }
        variables
    }
}

fn check_id(id: &str) -> Result<(), JobError> {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(ok) {
        let expected = "up to 64 letters, digits, '-' and '.'";
        return Err(JobError { name: env::ID, value: id.into(), expected });
    }
    Ok(())
}

fn parse_size(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&size| (1..=MAX_NODES).contains(&size))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bad_token() -> JobError {
    let expected = "32 hexadecimal digits";
    JobError { name: env::TOKEN, value: "(secret)".into(), expected }
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
        for (host, ptype, late) in [
            (false, Some(3), None),
            (true, Some(0), Some(Late::Starting)),
            (true, Some(1), Some(Late::Begun { by: 7 })),
        ] {
            let token = Token([7; 16]);
            let hosts = ["a", "b", "a", "b", "b"].map(str::to_owned);
            let hosts = hosts.into_iter().take(4 + usize::from(host)).collect();
            let job = Job { id: "j1".into(), token, size: 4, node: 2, host, ptype, late, hosts };
            let variables = job.to_env();
            let get = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
            };
            assert_eq!(Job::from_lookup(&get), Ok(Some(job)));
        }
        assert_eq!(Job::from_lookup(&|_| None), Ok(None));
    }

    fn job() -> Job {
        let token = Token([0xa5; 16]);
        let late = Some(Late::Begun { by: 2 });
        let (id, hosts) = ("17-0a0b0c0d".into(), ["a"; 5].map(str::to_owned).into());
        Job { id, token, size: 4, node: 3, host: true, ptype: Some(2), late, hosts }
    }

    #[test]
    fn each_bad_variable_is_named_and_the_token_is_not_shown() {
        let bad = [
            (env::ID, "a/b"),
            (env::ID, ""),
            (env::TOKEN, "guessed"),
            (env::TOKEN, "zz5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"),
            (env::NODE, "5"),
            (env::NODE, "-1"),
            (env::SIZE, "0"),
            (env::SIZE, "many"),
            (env::SIZE, "4097"),
            (env::PTYPE, "-1"),
            (env::HOSTS, "a,b,a"),
            (env::HOSTS, "a,b,a,b"),
            (env::HOSTS, "a,,b,b,a"),
            (env::LATE, ""),
            (env::LATE, "later"),
            (env::LATE, "begun"),
            (env::LATE, "begun:-1"),
        ];
        for (name, wrong) in bad {
            let variables = job().to_env();
            let get = |wanted: &str| match wanted == name {
                true => Some(wrong.to_owned()),
                false => variables.iter().find(|(key, _)| *key == wanted).map(|(_, v)| v.clone()),
            };
            let error = Job::from_lookup(&get).unwrap_err();
            assert_eq!(error.name, name);
            assert!(name != env::TOKEN || !error.to_string().contains(wrong));
        }
    }

    #[test]
    fn a_job_survives_being_a_word_and_nonsense_does_not() {
        let job = Job::new(4).unwrap();
        assert_eq!(Job::from_word(&job.to_word(), 0).unwrap(), job);
        for word in ["", "a:b", "a:1:2", "a:4:a5:x", &format!("{}:x", job.to_word())] {
            assert!(Job::from_word(word, 0).is_err(), "{word}");
        }
    }

    #[test]
    fn two_jobs_differ_in_name_and_token() {
        let (one, other) = (Job::new(1).unwrap(), Job::new(1).unwrap());
        assert!(one.id != other.id && one.token != other.token);
        assert!(check_id(&one.id).is_ok());
    }
}
