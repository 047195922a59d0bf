//! A service that knows outcomes, answers later, and has several threads, and its async client: `find serve`,
//! `find store KEY VALUE`, `find get KEY`, and `find wait KEY SECONDS`, which waits until somebody stores that.

#[path = "generated/find.rs"] // by `shrimpc rust find.x -o generated/find.rs`
#[allow(missing_docs, dead_code, unreachable_pub)]
#[rustfmt::skip]
mod find;

use find::{Answer, FindV1, FindV1AsyncClient, FindV1Service, FindV1WaitReplier, Outcome};
use shrimp_rpc::{Context, Fault, Server};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
struct Store {
    values: BTreeMap<String, String>,
    /// Calls that are answered later, from whichever thread.
    waiting: Vec<(String, FindV1WaitReplier)>,
}

#[derive(Default)]
struct Finder(Mutex<Store>);

impl Finder {
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FindV1 for Finder {
    fn store(&self, _: &Context, key: String, value: String) -> Result<(), Fault> {
        let mut store = self.lock();
        for (_, replier) in store.waiting.extract_if(.., |(wanted, _)| *wanted == key) {
            let _ = replier.send(Answer::Found(value.clone())); // nobody may wait any more
        }
        store.values.insert(key, value);
        Ok(())
    }

    fn get(&self, _: &Context, key: String) -> Result<Answer, Fault> {
        if key.starts_with('.') {
            return Ok(Answer::Default(Outcome::Denied, "it is hidden".into()));
        }
        Ok(self.lock().values.get(&key).cloned().map_or(Answer::Missing, Answer::Found))
    }

    fn wait(&self, key: String, replier: FindV1WaitReplier) {
        let mut store = self.lock();
        store.waiting.retain(|(_, it)| !it.context().is_cancelled()); // who gave up
        match store.values.get(&key).cloned() {
            Some(value) => drop(replier.send(Answer::Found(value))),
            None => store.waiting.push((key, replier)),
        }
    }
}

#[tokio::main(flavor = "current_thread")] // or any other executor
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("find: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["serve"] = words[..] {
        let program = FindV1Service(Finder::default());
        Server::builder("find").program(program).workers(2).start()?.run();
        return Ok(());
    }
    let client = FindV1AsyncClient::connect("find").await?;
    let answer = match words[..] {
        ["store", key, value] => return Ok(client.store(key, value).await?),
        ["get", key] => client.get(key).await?, // `?`: the call itself failed
        // Given up by dropping the future.
        ["wait", key, seconds] => {
            tokio::time::timeout(Duration::from_secs(seconds.parse()?), client.wait(key)).await??
        }
        _ => return Err("usage: find serve | store KEY VALUE | get KEY | wait KEY SECONDS".into()),
    };
    match answer {
        Answer::Found(value) => println!("{value}"),
        Answer::Missing => println!("there is none"),
        Answer::Default(outcome, why) => println!("{outcome:?}: {why}"),
    }
    Ok(())
}
