//! A Sun RPC client in Rust, for servers of `tests/c/types.x`: makes calls of every kind, checks what
//! comes back, and says how the calls travelled.
//!
//! ```text
//! cargo run -p compat-sunrpc --example types_client -- tcp PORT
//! ```

use rpc_idl_tests::types::*;
use std::error::Error;
use std::time::Duration;
use vrpc::client::{CallError, Client, Transport};
use vrpc::msg::{AuthSys, Credential, Status};
use vrpc::xdr::rpc::Caller;

type Anything = Result<(), Box<dyn Error>>;

fn same<T: PartialEq + std::fmt::Debug>(got: T, expected: T) -> Anything {
    if got == expected { Ok(()) } else { Err(format!("{got:?} instead of {expected:?}").into()) }
}

fn an_item(id: i32, next: List) -> List {
    Some(Box::new(Item { id, label: format!("item {id}"), next }))
}

fn everything() -> Everything {
    let r = Run {
        a: -5,
        b: 7,
        c: -3,
        d: 65535,
        e: b'x' as i8,
        f: 200,
        g: -1_000_000,
        h: 4_000_000_000,
        i: true,
        j: Colour::Blue,
        k: [1, 2, 3, 4, 5],
        l: [9, 8, 7, 6, 5, 4],
    };
    let s = Scalars {
        a: i64::MIN,
        b: u64::MAX,
        c: 1.5,
        d: -2.25e300,
        e: true,
        f: *b"sevensx",
        g: b"ab\0cd".to_vec(),
        h: vec![1; 16],
        i: "a string".into(),
        j: "twenty characters!!!".into(),
    };
    Everything {
        r,
        s,
        one: Choice::Red(77),
        two: Choice::Green("green".into()),
        three: Choice::Blue,
        f: Flagged::True(3.5),
        rows: [[1, 2, 3, 4], [5, 6, 7, 8]],
        names: ["a".into(), "bb".into(), "ccc".into()],
        items: (0..3).map(|id| Item { id, label: "it".into(), next: None }).collect(),
        tail: vec![1, -2, 3],
        chain: (0..4).fold(None, |next, id| an_item(id, next)),
        other: an_item(9, None),
        vec: [1.0, 2.0, 3.0],
        fl: vec![1.0, 2.0],
    }
}

fn types<C: Caller>(client: &TypesVClient<C>, largest: usize) -> Anything
where
    C::Error: Error + 'static,
{
    client.nothing()?;
    same(client.echo_int(-5)?, -5)?;
    same(client.echo_hyper(-81_985_529_216_486_896)?, -81_985_529_216_486_896)?;
    same(client.echo_double(6.02e23)?, 6.02e23)?;
    same(client.echo_bool(true)?, true)?;
    same(client.echo_colour(Colour::Blue)?, Colour::Blue)?;
    let all = everything();
    same(client.echo_run(&all.r)?, all.r)?;
    same(client.echo_scalars(&all.s)?, all.s.clone())?;
    same(client.echo_list(&all.chain)?, all.chain.clone())?;
    same(client.echo_choice(&all.two)?, all.two.clone())?;
    same(client.echo_everything(&all)?, all)?;
    same(client.echo_name("a name")?, "a name".into())?;
    let mut len = 0;
    while len <= largest {
        let bulk: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        same(client.count(&bulk)?, len as i32)?;
        same(client.echo_bulk(&bulk)?, bulk)?;
        len = len * 3 + 1;
    }
    Ok(())
}

fn refusals(client: &Client) -> Anything {
    let refused = |result: Result<i32, CallError>, expected: Status| match result {
        Err(CallError::Refused(status)) => same(status, expected),
        other => Err(format!("{other:?} instead of {expected:?}").into()),
    };
    let (program, version) = (types_v::PROGRAM, types_v::VERSION);
    refused(client.call(program, version, 999, &()), Status::NoProcedure)?;
    let versions = Status::OtherVersion { low: version, high: version };
    refused(client.call(program, 7, 0, &()), versions)?;
    refused(client.call(program + 1, 1, 0, &()), Status::NoProgram)?;
    // libtirpc reads on behind the end of a datagram, in what the last one has left there.
    if client.transport() != Transport::Udp {
        refused(client.call(program, version, types_v::ECHO_RUN, &()), Status::GarbageArguments)?;
    }
    // The reply is empty, and a number was expected.
    match client.call::<_, i32>(program, version, types_v::NOTHING, &()) {
        Err(CallError::Decode(_)) => Ok(()),
        other => Err(format!("{other:?} of an empty reply").into()),
    }
}

/// A call that is given up, and its answer, which comes too late for the next call too.
fn timeouts(client: &Client, patient: &Client) -> Anything {
    let stubs = TypesVClient::new(client);
    match stubs.sleep(300) {
        Err(CallError::TimedOut(_)) => {}
        other => return Err(format!("{other:?} of a call that takes too long").into()),
    }
    same(TypesVClient::new(patient).sleep(1)?, 1)
}

fn main() -> Anything {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: types_client tcp|udp PORT");
    let (net, port) = (next()?, next()?);
    let address = format!("127.0.0.1:{port}");
    let connect = |builder: vrpc::client::Builder| match net.as_str() {
        "udp" => builder.udp(&address),
        _ => builder.tcp(&address),
    };
    let client = connect(Client::builder())?;
    types(&TypesVClient::new(&client), if net == "udp" { 3000 } else { 3_000_000 })?;
    refusals(&client)?;
    let hasty = connect(Client::builder().timeout(Duration::from_millis(20)))?;
    timeouts(&hasty, &client)?;
    let sys = AuthSys {
        stamp: 1,
        machine: b"some.machine".to_vec(),
        uid: 1234,
        gid: 56,
        gids: vec![100, 101],
    };
    same(TypesVClient::new(&client).who()?, -1)?;
    let known = connect(Client::builder().credential(Credential::Sys(sys)))?;
    same(TypesVClient::new(&known).who()?, 1234 + 56_000 + 12 + 300 + 404)?;
    println!("all as expected, by {:?}", client.transport());
    Ok(())
}
