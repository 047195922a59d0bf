//! A key-value store: `kv serve`, `kv put KEY VALUE`, `kv get KEY`, `kv count`. A value of `-` is read from standard input. The clients find it as `KV_SERVICE`, which
//! is `kv` unless it says otherwise: `KV_SERVICE=kv@a` is that of node a.

#[path = "generated/kv.rs"]
#[allow(missing_docs, dead_code, unreachable_pub)] // a program uses its part of the stubs
#[rustfmt::skip] // it stays as the compiler made it
mod generated;

use generated::{KvV1, KvV1Client, KvV1Service, Status};
use shrimp_rpc::{Bulk, BulkOut, Context, Fault, Server};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
struct Store(Mutex<HashMap<String, Vec<u8>>>);

impl KvV1 for Store {
    fn put(&self, _: &Context, key: String, value: Bulk<'_, u8>) -> Result<bool, Fault> {
        let value = value.to_vec().map_err(|_| Fault::new(1, "no value"))?;
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(values.insert(key, value).is_some())
    }

    fn get(&self, _: &Context, key: String, value: &mut BulkOut<'_, u8>) -> Result<Status, Fault> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            Some(found) => value.put(found).map(|()| Status::Ok), // straight into the client's buffer
            None => Ok(Status::Missing),
        }
    }

    fn count(&self, _: &Context) -> Result<u32, Fault> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u32)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let service = std::env::var("KV_SERVICE").unwrap_or_else(|_| "kv".to_owned());
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => {
            Server::builder("kv").program(KvV1Service(Store::default())).start()?.run();
        }
        ["put", key, value] => {
            let mut value = value.as_bytes().to_vec();
            if value == b"-" {
                value.clear();
                std::io::stdin().read_to_end(&mut value)?;
            }
            let replaced = KvV1Client::connect(&service)?.put(key, &value)?;
            println!("{}", if replaced { "replaced" } else { "stored" });
        }
        ["get", key] => {
            let mut value = Vec::new();
            match KvV1Client::connect(&service)?.get(key, &mut value)? {
                Status::Ok => {
                    value.push(b'\n');
                    std::io::stdout().write_all(&value)?;
                }
                Status::Missing => return Err(format!("no value for {key:?}").into()),
            }
        }
        ["count"] => println!("{}", KvV1Client::connect(&service)?.count()?),
        _ => return Err("usage: kv serve | kv put KEY VALUE | kv get KEY | kv count".into()),
    }
    Ok(())
}
