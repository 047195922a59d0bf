//! Every function of the Rust interface between real processes, by `shrimp run` on 1, 2 and 4 nodes; what can go wrong is a `Result`;
//! and what safe code may do with operations under way: forget them, drop them, print them, panic in handlers.

mod build;

use build::{Done, Job, launcher, run};
use nx::{Dest, Info, JoinError, Mid, Nx, NxError, Reduction, Select};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

const PART: &str = "NX_API_PART";

/// The type is safe to share, and what an operation owns may go to another thread.
fn shared<T: Send + Sync>() {}

fn ring(nx: &Nx) -> (i32, i32) {
    let (node, nodes) = (nx.node(), nx.nodes());
    ((node + 1) % nodes, (node + nodes - 1) % nodes)
}

fn who(nx: &Nx) {
    shared::<Nx>();
    shared::<nx::Receiving<'_>>();
    shared::<nx::Sending<'_>>();
    assert!((0..nx.nodes()).contains(&nx.node()));
    assert_eq!((nx.ptype(), nx.host()), (Some(0), None));
    assert_eq!((nx.engine().node(), nx.engine().nodes()), (nx.node(), nx.nodes()));
    assert_eq!(nx.set_ptype(-1), Err(NxError::BadPtype { ptype: -1 }));
    nx.set_ptype(5).expect("nobody has it");
    assert_eq!(nx.ptype(), Some(5));
    // Calls without a process type mean the caller's own.
    nx.gsync().expect("all have it");
    let (after, before) = ring(nx);
    nx.csend(1, b"to 5", after).expect("csend");
    let mut room = [0; 4];
    let info = nx.crecv(1, &mut room).expect("crecv");
    assert_eq!((info.node, info.ptype, &room), (before, 5, b"to 5"));
    // The other type is named; who has it no more gets it when it takes it again.
    nx.csend_to(2, b"to 0", Dest { node: after, ptype: 0 }).expect("csend_to");
    nx.csend(3, b"flag", after).expect("csend");
    nx.crecv(3, &mut room).expect("crecv");
    assert_eq!(nx.iprobe(Select::types(-1)), Ok(None));
    nx.set_ptype(0).expect("its own");
    assert_eq!(nx.crecv(2, &mut room).expect("crecv").count, 4);
    assert!(matches!(Nx::join(), Err(JoinError::Start(_))), "the place is taken");
}

fn messages(nx: &Nx) {
    let (after, before) = ring(nx);
    let mut room = [0; 100];
    let info = Select { typesel: 7, node: before, ptype: 0 };
    nx.csend(7, b"seven", after).expect("csend");
    assert_eq!(nx.cprobe(info), Ok(Info { type_: 7, count: 5, node: before, ptype: 0 }));
    assert_eq!(nx.iprobe(info), nx.cprobe(info).map(Some));
    assert_eq!(nx.iprobe(Select { typesel: 99, node: -1, ptype: 0 }), Ok(None));
    assert_eq!(nx.crecvx(info, &mut room).map(|info| info.count), Ok(5));
    assert_eq!(&room[..5], b"seven");
    // Nothing, and from nothing.
    nx.csend(7, &[], after).expect("csend");
    assert_eq!(nx.crecv(7, &mut []).map(|info| info.count), Ok(0));
    let got = nx.csendrecv(8, b"both ways", after, Select::types(8), &mut room);
    assert_eq!(got, Ok(Info { type_: 8, count: 9, node: before, ptype: 0 }));
    // To a list, with this node in it, and to all others.
    let all: Vec<i32> = (0..nx.nodes()).collect();
    nx.gsendx(9, &[nx.node() as u8], &all).expect("gsendx");
    let mut from: Vec<u8> = all
        .iter()
        .map(|_| nx.crecv(9, &mut room).map(|_| room[0]))
        .collect::<Result<_, _>>()
        .expect("crecv");
    from.sort_unstable();
    assert!(from.iter().copied().map(i32::from).eq(all.iter().copied()), "{from:?}");
    nx.csend(10, b"all", -1).expect("csend");
    for _ in 1..nx.nodes() {
        assert_eq!(nx.crecv(10, &mut room).map(|info| info.count), Ok(3));
    }
    nx.gsync().expect("gsync");
    // Thrown away where it is.
    nx.csend(11, b"gone", nx.node()).expect("csend");
    nx.flushmsg(Select::types(11)).expect("flushmsg");
    nx.flick();
    assert_eq!(nx.iprobe(Select::types(-1)), Ok(None));
}

fn ids(nx: &Nx) {
    let (after, before) = ring(nx);
    let from = Select { typesel: -1, node: before, ptype: -1 };
    for len in [0, 8, 100_000, 5_000_000] {
        let bytes: Vec<u8> = (0..len).map(|at| at as u8 ^ nx.node() as u8).collect();
        let coming = nx.irecv(from, vec![0; len + 3]).expect("irecv");
        let going = nx.isend(3, bytes.clone(), after).expect("isend");
        assert!(format!("{coming:?} {going:?}").contains("mid"), "{coming:?}");
        while !coming.is_done() {
            nx.flick();
        }
        let (info, room) = coming.wait().expect("wait");
        assert_eq!((info.count, info.node, room.len()), (len, before, len + 3));
        assert!((0..len).all(|at| room[at] == at as u8 ^ before as u8), "{len} bytes");
        assert_eq!(going.wait(), Ok(bytes));
    }
    // Dropped: taken back, and the next one gets the message.
    drop(nx.irecv(Select::types(4), vec![0; 8]).expect("irecv"));
    nx.csend(4, b"for next", nx.node()).expect("csend");
    let mut room = [0; 8];
    assert_eq!(nx.crecv(4, &mut room).map(|info| info.count), Ok(8));
    drop(nx.isend(5, vec![5; 1000], nx.node()).expect("isend"));
    // Forgotten: the message comes into memory that nobody frees.
    for len in [8usize, 300_000] {
        let forgotten = nx.irecv(Select::types(6), vec![0; len]).expect("irecv");
        assert!(!forgotten.is_done());
        std::mem::forget(forgotten);
        nx.gsync().expect("gsync"); // nobody has sent yet
        let others: Vec<Vec<u8>> = (0..8).map(|_| vec![1; len]).collect();
        nx.csend(6, &vec![9; len], after).expect("csend");
        nx.gsync().expect("gsync");
        while nx.iprobe(Select::types(6)).expect("iprobe").is_some() {}
        assert!(others.iter().flatten().all(|&byte| byte == 1));
    }
    // As many as there are, and no more.
    let limit = 1024 - 2; // the forgotten ones keep theirs
    let all: Vec<_> =
        (0..limit).map(|_| nx.irecv(Select::types(99), vec![0; 1]).expect("irecv")).collect();
    assert_eq!(
        nx.irecv(Select::types(99), vec![0; 1]).map(drop),
        Err(NxError::NoMid { limit: 1024 })
    );
    assert_eq!(nx.isend(99, vec![0; 1], after).map(drop), Err(NxError::NoMid { limit: 1024 }));
    drop(all);
    nx.irecv(Select::types(99), vec![0; 1]).map(drop).expect("they are free again");
    // By the raw interface an id may be taken away from its owner: that one hears so, and keeps the bytes from being freed.
    let stolen = nx.irecv(Select::types(98), vec![0; 64]).expect("irecv");
    let text = format!("{stolen:?}");
    let mid = text
        .split("Mid(")
        .nth(1)
        .and_then(|rest| rest.split(')').next())
        .and_then(|it| it.parse().ok());
    let mid = Mid(mid.expect("a number"));
    nx.engine().msgignore(mid).expect("it is in use");
    assert!(matches!(stolen.wait(), Err(NxError::BadMid { .. })));
    nx.csend(98, &[1; 64], nx.node()).expect("into memory that is there");
}

fn handlers(nx: &Arc<Nx>) {
    let (after, before) = ring(nx);
    let (tell, told) = channel();
    // Two messages: a handler posts the next receive, sends, and allocates.
    let (again, first) = (nx.clone(), tell.clone());
    nx.hrecv(Select::types(20), vec![0; 16], move |result, room| {
        let info = result.expect("short enough");
        first.send((info, room[..info.count].to_vec())).expect("listens");
        let second = first.clone();
        again
            .hrecv(Select::types(20), room, move |result, room| {
                second.send((result.expect("short enough"), room)).expect("listens");
            })
            .expect("hrecv");
    })
    .expect("hrecv");
    let (sent, free) = channel();
    nx.hsend(20, b"first".to_vec(), after, move |result, bytes| {
        sent.send((result.map(|info| info.count), bytes)).expect("listens");
    })
    .expect("hsend");
    assert_eq!(free.recv(), Ok((Ok(5), b"first".to_vec())));
    let (info, bytes) = told.recv().expect("told");
    assert_eq!((info.node, &bytes[..]), (before, &b"first"[..]));
    nx.csend(20, &[7; 16], after).expect("csend");
    let (info, room) = told.recv().expect("told");
    assert_eq!((info.count, room), (16, vec![7; 16]));
    // Too long for its room: the handler is told, and has the beginning.
    let (long, heard) = channel();
    nx.hrecv(Select::types(21), vec![0; 2], move |result, room| {
        long.send((result, room)).expect("listens")
    })
    .expect("hrecv");
    nx.csend(21, b"long", nx.node()).expect("csend");
    let info = Info { type_: 21, count: 4, node: nx.node(), ptype: 0 };
    assert_eq!(heard.recv(), Ok((Err(NxError::MessageTooLong { info, room: 2 }), b"lo".to_vec())));
    // Masked: later.
    assert!(!nx.masktrap(true));
    let ran = Arc::new(AtomicU32::new(0));
    let mark = ran.clone();
    nx.hrecv(Select::types(22), vec![], move |_, _| mark.store(1, Ordering::SeqCst))
        .expect("hrecv");
    nx.csend(22, &[], nx.node()).expect("csend");
    nx.flick();
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert!(nx.masktrap(false));
    while ran.load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
    // Taken back: the handler and what it owns are dropped, and that may call anything.
    struct Calls(Arc<Nx>, Arc<AtomicU32>);
    impl Drop for Calls {
        fn drop(&mut self) {
            assert_eq!(self.0.iprobe(Select::types(23)), Ok(None));
            self.1.store(2, Ordering::SeqCst);
        }
    }
    let calls = Calls(nx.clone(), ran.clone());
    nx.hrecv(Select::types(23), vec![0; 4], move |_, _| drop(calls)).expect("hrecv");
    assert_eq!((nx.cancel_hrecv(22), nx.cancel_hrecv(23)), (Ok(0), Ok(1)));
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    nx.gsync().expect("gsync");
    // One that waits when the job is left is dropped, not run.
    let mark = ran.clone();
    nx.hrecv(Select::types(24), vec![0; 4], move |_, _| mark.store(3, Ordering::SeqCst))
        .expect("hrecv");
    nx.engine().leave();
    assert_eq!(ran.load(Ordering::SeqCst), 2);
}

fn globals(nx: &Nx) {
    let (node, nodes) = (nx.node(), nx.nodes());
    let each = || 0..nodes;
    for len in [0usize, 1, 8, 9, 1000, 20_000] {
        let mut sums: Vec<f64> = (0..len).map(|at| f64::from(node) + at as f64).collect();
        nx.reduce(Reduction::Sum, &mut sums).expect("reduce");
        let total = f64::from(each().sum::<i32>());
        assert!(
            sums.iter().enumerate().all(|(at, &sum)| sum == total + f64::from(nodes) * at as f64)
        );
        let mut high: Vec<i64> = (0..len).map(|at| at as i64 * i64::from(node)).collect();
        nx.reduce(Reduction::High, &mut high).expect("reduce");
        assert!(
            high.iter().enumerate().all(|(at, &high)| high == at as i64 * i64::from(nodes - 1))
        );
        // The last of each, by an operation of our own.
        let mut most = vec![node; len];
        nx.gopf(&mut most, |x, y| x.iter_mut().zip(y).for_each(|(x, &y)| *x = (*x).max(y)))
            .expect("gopf");
        assert!(most.iter().all(|&most| most == nodes - 1));
    }
    let mut low = [1.5f32 - node as f32];
    nx.reduce(Reduction::Low, &mut low).expect("reduce");
    assert_eq!(low, [2.5 - nodes as f32]);
    let mut or = [1i32 << node];
    nx.reduce(Reduction::Or, &mut or).expect("reduce");
    assert_eq!(or, [(1 << nodes) - 1]);
    for unit in [1usize, 1000] {
        let mine = vec![node as u8; unit * (node as usize + 1)];
        let all: Vec<u8> = each().flat_map(|it| vec![it as u8; unit * (it as usize + 1)]).collect();
        assert_eq!(nx.gcol(&mine, all.len()), Ok(all.clone()));
        assert_eq!(nx.gcol(&mine, usize::MAX), Ok(all.clone()));
        let lens: Vec<usize> = each().map(|it| unit * (it as usize + 1)).collect();
        assert_eq!(nx.gcolx(&mine, &lens), Ok(all.clone()));
        let short = nx.gcol(&mine, all.len() - 1).expect_err("too short");
        assert!(
            matches!(short, NxError::NoRoomForAll { all: gave, .. } if gave == all.len()),
            "{short}"
        );
        assert_eq!(nx.gcolx(&mine, &[]), Err(NxError::BadLength { len: 0 }));
        let mut wrong = lens.clone();
        wrong[node as usize] += 1;
        assert_eq!(nx.gcolx(&mine, &wrong), Err(NxError::BadLength { len: mine.len() as i64 }));
    }
    let bits = nx.reduce(Reduction::And, &mut [1.0f64]);
    assert_eq!(bits, Err(NxError::BadReduction { op: Reduction::And }));
    nx.gsync().expect("gsync");
}

fn errors(nx: &Nx) {
    let last = nx.nodes() as u32 - 1;
    let node = nx.nodes();
    let bad_node = NxError::BadNode { node, last };
    // Its number, where there is one.
    let no_host = NxError::NoHost { node };
    let bad_type = NxError::BadType { type_: -1 };
    let nowhere = Select { typesel: 1, node, ptype: -1 };
    let no_type = Select { typesel: 1, node: -1, ptype: -2 };
    let mut room = [0; 4];
    assert_eq!(nx.csend(1, b"x", node), Err(no_host.clone()));
    assert_eq!(nx.csend(-1, b"x", 0), Err(bad_type.clone()));
    assert_eq!(
        nx.csend_to(1, b"x", Dest { node: 0, ptype: -1 }),
        Err(NxError::BadPtype { ptype: -1 })
    );
    assert_eq!(nx.csend(1, b"x", node + 1), Err(NxError::BadNode { node: node + 1, last }));
    assert_eq!(nx.gsendx(1, b"x", &[0, node]), Err(no_host.clone()));
    assert_eq!(nx.isend(1, vec![1], node).map(drop), Err(no_host.clone()));
    assert_eq!(nx.hsend(-1, vec![1], 0, |_, _| panic!("not sent")), Err(bad_type.clone()));
    assert_eq!(nx.csendrecv(-1, b"x", 0, Select::types(1), &mut room), Err(bad_type));
    assert_eq!(nx.csendrecv(1, b"x", 0, nowhere, &mut room), Err(bad_node.clone()));
    for (select, error) in [(nowhere, &bad_node), (no_type, &NxError::BadPtype { ptype: -2 })] {
        assert_eq!(nx.crecvx(select, &mut room), Err(error.clone()));
        assert_eq!(nx.irecv(select, vec![1]).map(drop), Err(error.clone()));
        assert_eq!(nx.hrecv(select, vec![1], |_, _| panic!("not received")), Err(error.clone()));
        assert_eq!(nx.cprobe(select), Err(error.clone()));
        assert_eq!(nx.iprobe(select), Err(error.clone()));
    }
    // Too long for the room: the message is taken, the room has its beginning.
    nx.csend(2, b"longer", nx.node()).expect("csend");
    let info = Info { type_: 2, count: 6, node: nx.node(), ptype: 0 };
    let too_long = NxError::MessageTooLong { info, room: 4 };
    assert_eq!(nx.crecv(2, &mut room), Err(too_long.clone()));
    assert_eq!(&room, b"long");
    let coming = nx.irecv(Select::types(2), vec![0; 4]).expect("irecv");
    nx.csend(2, b"longer", nx.node()).expect("csend");
    assert_eq!(coming.wait(), Err(too_long));
    assert_eq!(nx.iprobe(Select::types(-1)), Ok(None));
    nx.gsync().expect("gsync");
    // After the end every call says so.
    nx.engine().leave();
    let ended = NxError::NotStarted;
    assert_eq!(nx.csend(1, b"x", 0), Err(ended.clone()));
    assert_eq!(nx.crecv(1, &mut room), Err(ended.clone()));
    assert_eq!(nx.csendrecv(1, b"x", 0, Select::types(1), &mut room), Err(ended.clone()));
    assert_eq!(nx.irecv(Select::types(1), vec![1]).map(drop), Err(ended.clone()));
    assert_eq!(nx.isend(1, vec![1], 0).map(drop), Err(ended.clone()));
    assert_eq!(nx.hrecv(Select::types(1), vec![1], |_, _| ()), Err(ended.clone()));
    assert_eq!(nx.hsend(1, vec![1], 0, |_, _| ()), Err(ended.clone()));
    assert_eq!(nx.cprobe(Select::types(1)), Err(ended.clone()));
    assert_eq!(nx.iprobe(Select::types(1)), Err(ended.clone()));
    assert_eq!(nx.gsendx(1, b"x", &[0]), Err(ended.clone()));
    assert_eq!(nx.flushmsg(Select::types(1)), Err(ended.clone()));
    assert_eq!(nx.cancel_hrecv(1), Err(ended.clone()));
    assert_eq!(nx.gsync(), Err(ended.clone()));
    assert_eq!(nx.reduce(Reduction::Sum, &mut [1]), Err(ended.clone()));
    assert_eq!(nx.gopf(&mut [1], |_, _| ()), Err(ended.clone()));
    assert_eq!(nx.gcol(b"x", 9), Err(ended.clone()));
    assert_eq!(nx.gcolx(b"x", &vec![1; nx.nodes() as usize]), Err(ended));
}

/// Threads of one node that wait for each other's messages, each by its own selector.
fn threads(nx: &Nx) {
    let (after, before) = ring(nx);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let select = Select { typesel: 50 + thread, node: before, ptype: 0 };
                for turn in 0..200u32 {
                    let coming = nx.irecv(select, vec![0; 4]).expect("irecv");
                    nx.csend(50 + thread, &turn.to_ne_bytes(), after).expect("csend");
                    let (_, room) = coming.wait().expect("wait");
                    assert_eq!(room, turn.to_ne_bytes());
                }
            });
        }
    });
    nx.gsync().expect("gsync");
}

/// Node 0's handler panics: its calls say so, the others hear that it has gone.
fn panics(nx: &Nx) {
    nx.gsync().expect("gsync");
    if nx.node() > 0 {
        assert_eq!(nx.crecv(2, &mut [0; 1]), Err(NxError::PeerDied { node: 0 }));
        return;
    }
    nx.hrecv(Select::types(1), vec![], |_, _| panic!("on purpose")).expect("hrecv");
    nx.csend(1, &[], 0).expect("csend");
    let error = nx.crecv(2, &mut [0; 1]).expect_err("nobody sends");
    assert_eq!(error, NxError::HandlerPanicked { what: "on purpose".into() });
    assert!(error.to_string().contains("a handler panicked (on purpose)"));
    // Masking waits for a handler that runs: it does not.
    assert!(!nx.masktrap(true));
}

/// What a node of the tests below does.
#[test]
fn node() {
    let Ok(part) = std::env::var(PART) else { return };
    let nx = Arc::new(Nx::join().expect("a node"));
    match &*part {
        "who" => who(&nx),
        "messages" => messages(&nx),
        "ids" => ids(&nx),
        "handlers" => handlers(&nx),
        "globals" => globals(&nx),
        "errors" => errors(&nx),
        "threads" => threads(&nx),
        "panics" => panics(&nx),
        other => panic!("{other}: not a part"),
    }
    println!("{part}: node {} is done", nx.node());
    if let Some(nx) = Arc::into_inner(nx) {
        nx.leave();
    }
}

fn play(job: &Job, part: &str, nodes: u32) -> Done {
    let own = std::env::current_exe().expect("own path");
    let arguments = ["--exact", "node", "--nocapture", "--test-threads=1"];
    let number = nodes.to_string();
    run(launcher(job, &["-n", &number], Path::new(&own), &arguments).env(PART, part))
}

#[track_caller]
fn on_all_sizes(part: &str) {
    build::target();
    let job = Job::new();
    for nodes in [1, 2, 4] {
        let done = play(&job, part, nodes);
        assert_eq!(done.code, Some(0), "{nodes} nodes: {done}");
        for node in 0..nodes {
            let says = format!("{part}: node {node} is done");
            assert!(done.out.contains(&says), "{nodes} nodes: {done}");
        }
    }
}

#[test]
fn a_process_knows_its_place_and_its_type() {
    on_all_sizes("who");
}

#[test]
fn messages_are_sent_probed_received_and_thrown_away() {
    on_all_sizes("messages");
}

#[test]
fn operations_under_way_own_their_bytes_whatever_becomes_of_them() {
    on_all_sizes("ids");
}

#[test]
fn handlers_run_are_masked_taken_back_and_dropped() {
    on_all_sizes("handlers");
}

#[test]
fn global_operations_combine_and_collect() {
    on_all_sizes("globals");
}

#[test]
fn what_is_wrong_is_an_error_that_says_what() {
    on_all_sizes("errors");
}

#[test]
fn threads_of_a_node_wait_for_messages_of_their_own() {
    on_all_sizes("threads");
}

#[test]
fn a_handler_that_panics_ends_the_job_with_its_words() {
    on_all_sizes("panics");
}

#[test]
fn who_was_not_started_as_a_node_is_told_so() {
    // This process has no job in its environment.
    let error = Nx::join().map(drop).expect_err("no job");
    assert!(matches!(error, JoinError::NoJob), "{error}");
    assert!(error.to_string().contains("shrimp run -n N"), "{error}");
}
