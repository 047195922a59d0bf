//! PMI-1: one line `cmd=... key=value ...` each way.

use super::wire::{Stream, value};
use super::{PmiError, Store};

/// A connection that is initialised.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// Name of the store of this application.
    kvs: String,
}

impl Client {
    /// Begins the conversation; answers rank and size too.
    pub(super) fn start(
        stream: Stream,
        id: u32,
        known: Option<(u32, u32)>,
    ) -> Result<(Client, u32, u32), PmiError> {
        let mut client = Client { stream, kvs: String::new() };
        if known.is_none() {
            // By address the launcher does not know yet who we are.
            client.ask("initack", &format!("cmd=initack pmiid={id}"), "cmd=initack")?;
        }
        let (mut rank, mut size) = known.unwrap_or((id, 1));
        if known.is_none() {
            // It tells unasked: size, rank, debug, one line each.
            for _ in 0..3 {
                let line = client.stream.line()?;
                if let Some(number) = value(&line, ' ', "size").and_then(|v| v.parse().ok()) {
                    size = number;
                }
                if let Some(number) = value(&line, ' ', "rank").and_then(|v| v.parse().ok()) {
                    rank = number;
                }
            }
        }
        let hello = "cmd=init pmi_version=1 pmi_subversion=1";
        client.ask("init", hello, "cmd=response_to_init")?;
        let answer = client.ask("get_my_kvsname", "cmd=get_my_kvsname", "cmd=my_kvsname")?;
        client.kvs = value(&answer, ' ', "kvsname").unwrap_or_default().to_owned();
        Ok((client, rank, size))
    }

    fn ask(
        &mut self,
        command: &'static str,
        line: &str,
        expected: &str,
    ) -> Result<String, PmiError> {
        self.stream.write(format!("{line}\n").as_bytes())?;
        let answer = self.stream.line()?;
        let good = answer.split(' ').next() == Some(expected)
            && value(&answer, ' ', "rc").is_none_or(|rc| rc == "0");
        if good { Ok(answer) } else { Err(PmiError::Refused { command, answer }) }
    }

    pub(super) fn abort(&mut self, code: u8) -> Result<(), PmiError> {
        self.stream.write(format!("cmd=abort exitcode={code}\n").as_bytes())
    }

    pub(super) fn finish(&mut self) -> Result<(), PmiError> {
        self.ask("finalize", "cmd=finalize", "cmd=finalize_ack").map(|_| ())
    }
}

impl Store for Client {
    fn put(&mut self, key: &str, word: &str) -> Result<(), PmiError> {
        let line = format!("cmd=put kvsname={} key={key} value={word}", self.kvs);
        self.ask("put", &line, "cmd=put_result").map(|_| ())
    }

    fn fence(&mut self) -> Result<(), PmiError> {
        self.ask("barrier_in", "cmd=barrier_in", "cmd=barrier_out").map(|_| ())
    }

    fn get(&mut self, key: &str) -> Result<String, PmiError> {
        let line = format!("cmd=get kvsname={} key={key}", self.kvs);
        let answer = self.ask("get", &line, "cmd=get_result")?;
        match value(&answer, ' ', "value") {
            Some(word) => Ok(word.to_owned()),
            None => Err(PmiError::Refused { command: "get", answer }),
        }
    }
}
