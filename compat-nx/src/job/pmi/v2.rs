//! PMI-2: after one line in the manner of PMI-1, messages `cmd=...;key=value;` with their length
//! in front, six characters wide.

use super::wire::{Stream, value};
use super::{PmiError, Store};

/// A connection that is initialised.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
}

impl Client {
    /// Begins the conversation; answers rank and size too.
    pub(super) fn start(
        mut stream: Stream,
        id: u32,
        known: Option<(u32, u32)>,
    ) -> Result<(Client, u32, u32), PmiError> {
        stream.write(b"cmd=init pmi_version=2 pmi_subversion=0\n")?;
        let answer = stream.line()?;
        let good = answer.starts_with("cmd=response_to_init")
            && value(&answer, ' ', "rc") == Some("0")
            && value(&answer, ' ', "pmi_version") == Some("2");
        if !good {
            return Err(PmiError::Refused { command: "init", answer });
        }
        let mut client = Client { stream };
        let rank = known.map_or(id, |(rank, _)| rank);
        let hello = format!("cmd=fullinit;pmijobid=;pmirank={rank};threaded=FALSE;");
        let answer = client.ask("fullinit", &hello, "cmd=fullinit-response")?;
        let number = |key: &str| value(&answer, ';', key).and_then(|text| text.parse().ok());
        let refused = || PmiError::Refused { command: "fullinit", answer: answer.clone() };
        let rank = number("rank").unwrap_or(rank);
        let size = number("size").or(known.map(|(_, size)| size)).ok_or_else(refused)?;
        Ok((client, rank, size))
    }

    fn tell(&mut self, text: &str) -> Result<(), PmiError> {
        self.stream.write(format!("{:6}{text}", text.len()).as_bytes())
    }

    fn ask(
        &mut self,
        command: &'static str,
        text: &str,
        expected: &str,
    ) -> Result<String, PmiError> {
        self.tell(text)?;
        let len = self.stream.exactly(6)?;
        let Ok(len) = len.trim().parse() else {
            return Err(PmiError::Refused { command, answer: len });
        };
        let answer = self.stream.exactly(len)?;
        let good = answer.split(';').next() == Some(expected)
            && value(&answer, ';', "rc").is_none_or(|rc| rc == "0");
        if good { Ok(answer) } else { Err(PmiError::Refused { command, answer }) }
    }

    pub(super) fn abort(&mut self, why: &str) -> Result<(), PmiError> {
        // A semicolon would end the value.
        let why = why.replace([';', '\n'], " ");
        self.tell(&format!("cmd=abort;isworld=TRUE;msg={why};"))
    }

    pub(super) fn finish(&mut self) -> Result<(), PmiError> {
        self.ask("finalize", "cmd=finalize;", "cmd=finalize-response").map(|_| ())
    }
}

impl Store for Client {
    fn put(&mut self, key: &str, word: &str) -> Result<(), PmiError> {
        let text = format!("cmd=kvs-put;key={key};value={word};");
        self.ask("kvs-put", &text, "cmd=kvs-put-response").map(|_| ())
    }

    fn fence(&mut self) -> Result<(), PmiError> {
        self.ask("kvs-fence", "cmd=kvs-fence;", "cmd=kvs-fence-response").map(|_| ())
    }

    fn get(&mut self, key: &str) -> Result<String, PmiError> {
        let text = format!("cmd=kvs-get;jobid=;srcid=-1;key={key};");
        let answer = self.ask("kvs-get", &text, "cmd=kvs-get-response")?;
        match value(&answer, ';', "value").filter(|word| !word.is_empty()) {
            Some(word) => Ok(word.to_owned()),
            None => Err(PmiError::Refused { command: "kvs-get", answer }),
        }
    }
}
