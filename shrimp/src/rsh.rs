//! Reaching other nodes: a remote shell, which runs this program there.

use crate::children;
use std::process::Command;

/// When nothing else is said: no questions, since nobody could answer them.
const DEFAULT: &str = "ssh -T -o BatchMode=yes";

/// What reaches a host.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Rsh {
    /// What reaches a host: a command; {} in it stands for the host's name, which otherwise comes last. It asks nothing on the
    /// terminal
    #[arg(long, value_name = "COMMAND", env = "SHRIMP_RSH", default_value = DEFAULT)]
    rsh: String,
}

impl Rsh {
    /// The words that come before a command on `host`.
    fn words(&self, host: &str) -> Vec<String> {
        let words = self.rsh.split_ascii_whitespace().map(|word| word.replace("{}", host));
        let name = (!self.rsh.contains("{}")).then(|| host.to_owned());
        words.chain(name).collect()
    }

    /// This program on `host`, with a subcommand; `None` when no command was given.
    pub(crate) fn command(&self, host: &str, subcommand: &str) -> Option<Command> {
        let words = self.words(host);
        let (program, rest) = words.split_first().filter(|_| !self.rsh.trim().is_empty())?;
        let mut command = Command::new(program);
        command.args(rest).arg(children::own_program()).arg(subcommand);
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_stands_where_the_shell_wants_it() {
        let words = |rsh: &str| Rsh { rsh: rsh.to_owned() }.words("a");
        assert_eq!(words("ssh -T"), ["ssh", "-T", "a"]);
        let expected = ["ip", "netns", "exec", "ns-a", "env", "X=/a"];
        assert_eq!(words("ip netns exec ns-{} env X=/{}"), expected);
        assert!(Rsh { rsh: " ".to_owned() }.command("a", "stat").is_none());
    }
}
