//! Between nodes everything can fail: links are cut, stand still, crawl; daemons die and come back.
//! Every waiter gets an error, no part of a message passes for the whole, and what can be had again is.

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/restart.rs"]
mod restart;

use cluster::{KEY, Place, address_of, node_with, pair, pair_over, pair_with};
use common::{PATIENCE, export, signal, until};
use proxy::Proxy;
use restart::restart;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use vmmc::error::{SendError, WaitError};
use vmmc::{CloseReason, Event, Import, Node, Region, Rights, Who};

fn import(node: &Node) -> Import {
    let import = node.import("x").node("a").rights(Rights::WRITE | Rights::READ);
    import.timeout(PATIENCE.unwrap()).open().unwrap()
}

/// In the cluster files: for bare TCP, and for fabrics beside it, which write long messages by themselves.
const ENGINES: [&str; 3] = [
    "",
    "[fabric]\nprovider = \"tcp;ofi_rxm\"\ndirect = \"on\"\n",
    "[fabric]\nprovider = \"net\"\ndirect = \"on\"\n",
];

/// Those of them that this process can use: a fabric is opened by the importing process, and this one is in no namespace.
fn engines() -> &'static [&'static str] {
    if cluster::in_namespaces() { &ENGINES[..1] } else { &ENGINES }
}

/// Two nodes with a proxy on the way from `b` to `a`.
fn apart() -> (Place, Place, Proxy) {
    apart_with("")
}

/// The same, with more in the cluster files. What goes over a fabric does not go by the proxy.
fn apart_with(more: &str) -> (Place, Place, Proxy) {
    let address = address_of("a");
    let proxy = Proxy::to(&address);
    let a = node_with("a", &address, &[], Some(KEY), more);
    let b = node_with("b", &address_of("b"), &[("a", proxy.address())], Some(KEY), more);
    (a, b, proxy)
}

fn reason(end: &Result<u32, WaitError>) -> Option<CloseReason> {
    match end {
        Err(WaitError::Closed(closed)) => Some(closed.reason),
        _ => None,
    }
}

/// H19: set-up goes by connections of its own, which are answered whatever becomes of the data.
#[test]
fn set_up_is_answered_while_data_stand_still() {
    let (a, b) = pair();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(4096).unwrap();
    let export = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = export.queue().open().unwrap();
    let first = import(&importer);
    export.disable(0..4096).unwrap();
    first.send(0, &[1; 8]).unwrap();
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert!(matches!(event, Event::Frozen { .. }), "{event:?}");
    // Nothing of this process gets through; its questions and its daemons' do.
    let refused = importer.import("nobody").node("a").timeout(Duration::ZERO).open().unwrap_err();
    assert!(refused.to_string().contains("nothing is exported as \"nobody\""), "{refused}");
    assert!(importer.list().unwrap().is_empty());
    let other = b.daemon.node();
    let second = import(&other);
    second.fence().unwrap();
    export.wait_importers(2, PATIENCE).unwrap();
    export.enable(0..4096).unwrap();
    first.fence().unwrap();
    let mut seen = [0; 8];
    export.read(0, &mut seen).unwrap();
    assert_eq!(seen, [1; 8]);
}

/// However long the handshake of the two daemons may take.
#[test]
fn an_import_from_a_node_that_stands_still_ends_soon_after_its_time() {
    let (a, b) = pair();
    let importer = b.daemon.node();
    signal(a.daemon.pid(), Signal::STOP);
    let began = Instant::now();
    let error = importer.import("x").node("a").timeout(Duration::from_millis(100)).open();
    let (took, said) = (began.elapsed(), error.unwrap_err().to_string());
    signal(a.daemon.pid(), Signal::CONT);
    assert!(said.contains("\"a\"") && said.contains("did not answer in the time given"), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}: the handshake's own limit is 20 s");
}

/// What is behind a packet that is held back waits with it, a new link too.
#[test]
fn an_import_that_is_granted_and_not_opened_is_given_up_in_time_and_its_link_with_it() {
    let (a, b) = pair();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let frozen = export(&exporter, "x", 4096);
    let other = export(&exporter, "other", 4096);
    let first = import(&importer);
    frozen.disable(0..4096).unwrap();
    first.send(0, &[1; 8]).unwrap();
    let importing = || importer.import("other").node("a").rights(Rights::WRITE);
    let late = importing().timeout(Duration::from_millis(100)).open().unwrap_err();
    let said = late.to_string();
    assert!(said.contains("does not open the link") && said.contains("disabled"), "{said}");
    frozen.enable(0..4096).unwrap();
    first.fence().unwrap();
    // The interface has opened it meanwhile, and hears that nobody wants it.
    until("it has ended", || other.importers().is_empty());
    let again = importing().timeout(PATIENCE.unwrap()).open().unwrap();
    again.send_fenced(0, &[2; 8]).unwrap();
    assert!(first.check_open().is_ok());
}

#[test]
fn a_cut_link_ends_every_wait_and_the_next_import_makes_another() {
    for engine in engines() {
        let (a, b, proxy) = apart_with(engine);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 4096);
        let import_of = || import(&importer);
        for round in 1..=5u32 {
            let first = import_of();
            first.flag32(0).unwrap().signal(round).unwrap();
            let flag = export.flag32(0).unwrap();
            flag.wait_until(|value| value == round, PATIENCE).unwrap();
            std::thread::scope(|scope| {
                let waiter =
                    scope.spawn(|| first.flag32(64).unwrap().wait_until(|it| it == 1, PATIENCE));
                let other = scope.spawn(|| flag.wait_until(|value| value == round + 1, PATIENCE));
                proxy.cut();
                assert_eq!(reason(&waiter.join().unwrap()), Some(CloseReason::Unreachable));
                assert_eq!(reason(&other.join().unwrap()), Some(CloseReason::PeerDied));
            });
            assert!(matches!(first.send(0, &[1]), Err(SendError::Closed(_))));
            assert!(matches!(first.fence(), Err(WaitError::Closed(_))));
            assert_eq!(first.check_open().unwrap_err().reason, CloseReason::Unreachable);
        }
    }
}

#[test]
fn a_handler_hears_of_the_end_of_each_of_many_links_once() {
    for engine in engines() {
        let (a, b, proxy) = apart_with(engine);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let _export = export(&exporter, "x", 4096);
        let (heard, ends) = std::sync::mpsc::channel();
        let imports: Vec<Import> = (0..50)
            .map(|i| {
                let heard = heard.clone();
                let import = importer.import("x").node("a").timeout(PATIENCE.unwrap());
                import.handler(move |it| heard.send((i, it.event)).unwrap()).open().unwrap()
            })
            .collect();
        // Those that the daemons keep for their next questions are closed in time, too.
        until("one connection is left for all imports", || proxy.connections() == 1);
        proxy.cut();
        let mut seen = vec![0; 50];
        let all = |seen: &mut Vec<u32>| {
            for (i, event) in ends.try_iter() {
                assert_eq!(event, Event::Closed { reason: CloseReason::Unreachable });
                seen[i as usize] += 1;
            }
            seen.iter().all(|&count| count == 1)
        };
        importer.run_until(|| all(&mut seen), PATIENCE).unwrap();
        drop(imports);
        importer.dispatch();
        assert!(all(&mut seen), "{seen:?}");
    }
}

/// A half-open link: no FIN comes, nor an RST, nor an acknowledgement. Both ends miss the other node, also one that waits for
/// nothing but has sent, which keeps the kernel from asking; and there is a new link when there is a way again. (If there is one
/// soon the old link goes on: `net_resume`.)
#[test]
fn a_node_that_vanishes_without_a_word_is_missed_by_both_ends() {
    // A fabric beside it stays healthy, whichever.
    for engine in &ENGINES[..2] {
        let (a, b, proxy) = apart_with(engine);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let region = Region::new(4096).unwrap();
        let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
        let export = builder.queue().open().unwrap();
        let (heard, ends) = std::sync::mpsc::channel();
        let builder =
            importer.import("x").node("a").rights(Rights::WRITE).timeout(PATIENCE.unwrap());
        let first = builder.handler(move |it| heard.send(it.event).unwrap()).open().unwrap();
        first.send_with_notify(0, &[1; 8]).unwrap();
        assert!(matches!(export.next_notification(PATIENCE).unwrap().event, Event::Message { .. }));
        proxy.bar(true);
        proxy.vanish();
        first.send(0, &[2; 8]).unwrap();
        let mut end = None;
        importer
            .run_until(|| ends.try_iter().any(|it| end.replace(it).is_none()), PATIENCE)
            .unwrap();
        assert_eq!(end, Some(Event::Closed { reason: CloseReason::Unreachable }));
        let end = export.next_notification(PATIENCE).unwrap().event;
        assert_eq!(end, Event::Closed { reason: CloseReason::PeerDied });
        proxy.bar(false);
        let again = import(&importer);
        again.send_with_notify(0, &[3; 8]).unwrap();
        assert!(matches!(export.next_notification(PATIENCE).unwrap().event, Event::Message { .. }));
    }
}

/// The same where the exporter's side has told the other node something, which keeps its kernel from asking.
#[test]
fn a_node_that_vanishes_is_missed_also_when_it_was_told_something() {
    let (a, b, proxy) = apart();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let other = export(&exporter, "y", 4096);
    let export = export(&exporter, "x", 4096);
    let _first = import(&importer);
    let y = importer.import("y").node("a").rights(Rights::WRITE).timeout(PATIENCE.unwrap());
    let _second = y.open().unwrap();
    proxy.bar(true);
    proxy.vanish();
    std::thread::scope(|scope| {
        // The importer is told, and never answers.
        scope.spawn(|| drop(other.unexport().unwrap()));
        let end = export.flag32(0).unwrap().wait_until(|value| value == 1, PATIENCE);
        assert_eq!(reason(&end), Some(CloseReason::PeerDied));
    });
}

#[test]
fn a_message_that_came_in_part_is_not_notified() {
    let (a, b, proxy) = apart();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(1 << 20).unwrap();
    let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = builder.queue().open().unwrap();
    for keep in [1u64, 31, 32, 33, 5000, 300_000, 700_000] {
        let import = import(&importer);
        import.send_with_notify(0, &[1; 16]).unwrap();
        import.fence().unwrap();
        let whole = export.next_notification(PATIENCE).unwrap().event;
        assert!(matches!(whole, Event::Message { len: 16, .. }));
        proxy.cut_after(keep);
        // The sender may be told, or have handed it to the network before the cut.
        let _ = import.send_with_notify(0, &vec![2; 1 << 20]);
        assert!(matches!(import.fence(), Err(WaitError::Closed(_))), "{keep}");
        let next = export.next_notification(PATIENCE).unwrap().event;
        assert_eq!(next, Event::Closed { reason: CloseReason::PeerDied }, "{keep}");
    }
}

#[test]
fn a_link_that_crawls_delivers_everything_in_order() {
    let (a, b, proxy) = apart();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let region = Region::new(1 << 16).unwrap();
    let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = builder.queue().open().unwrap();
    let import = import(&importer);
    proxy.crawl(7);
    for i in 0..60u64 {
        let message = [i; 20].map(u64::to_ne_bytes).concat();
        import.send_with_notify(160 * i as usize, &message).unwrap();
    }
    for i in 0..60u64 {
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert_eq!(event, Event::Message { offset: 160 * i as usize, len: 160, last_word: i });
        let mut seen = vec![0; 160];
        export.read(160 * i as usize, &mut seen).unwrap();
        assert!(seen == [i; 20].map(u64::to_ne_bytes).concat());
    }
    import.fence().unwrap();
}

/// The interface sleeps until there is a good deal of a long message: what comes behind it, a page that takes nothing in its middle
/// and an exporter that withdraws meanwhile are seen to all the same.
#[test]
fn long_messages_that_crawl_land_whole_and_hold_nothing_up() {
    const LEN: usize = 300_000;
    const LATE: usize = 72_000;
    let (a, b, proxy) = apart();
    let mut config = a.daemon.config();
    config.drain = Duration::from_millis(500);
    let exporter = Node::builder().config(config).connect().unwrap();
    let importer = b.daemon.node();
    let region = Region::new(LEN).unwrap();
    let builder = exporter.export(region).name("x").grant(Who::SameUser, Rights::all());
    let export = builder.queue().open().unwrap();
    let import = import(&importer);
    let message = |byte: u8| vec![byte; LEN];
    let has = |byte: u8| {
        let mut seen = message(0);
        export.read(0, &mut seen).unwrap();
        seen.iter().all(|&it| it == byte)
    };
    proxy.crawl(5_000);
    proxy.delay(Duration::from_millis(2));
    for byte in 1..=4 {
        import.send(0, &message(byte)).unwrap();
        import.send_with_notify(LEN - 8, &[byte; 8]).unwrap();
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert!(matches!(event, Event::Message { len: 8, .. }), "{event:?}");
        assert!(has(byte), "what is told of is behind the whole message");
    }
    // A page in the middle.
    export.disable(200_704..204_800).unwrap();
    import.send(0, &message(5)).unwrap();
    let event = export.next_notification(PATIENCE).unwrap().event;
    assert!(matches!(event, Event::Frozen { .. }), "{event:?}");
    export.enable(200_704..204_800).unwrap();
    import.fence().unwrap();
    assert!(has(5));
    // What was sent before an exporter withdraws lands, although as much as is slept for takes longer than two of his turns: in
    // the first what came with the header lands.
    proxy.crawl(50);
    import.send(0, &message(6)[..LATE]).unwrap();
    let mut memory = export.unexport().unwrap();
    let at = memory.as_mut_slice()[..LATE].iter().position(|&byte| byte != 6);
    assert_eq!(at, None, "of {LATE}");
}

#[test]
fn a_link_that_stands_still_holds_the_sender_and_loses_nothing() {
    let (a, b, proxy) = apart();
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 1 << 20);
    let import = import(&importer);
    proxy.hold();
    let sender = std::thread::spawn(move || {
        // Far more than all buffers on the way.
        for i in 0..64u8 {
            import.send(0, &vec![i; 1 << 20]).unwrap();
        }
        import.fence().unwrap();
        import
    });
    let shut = proxy.fills(PATIENCE.unwrap());
    assert!(!sender.is_finished(), "64 MiB went nowhere");
    assert!(shut < 64 << 20);
    proxy.go_on();
    let import = sender.join().unwrap();
    let mut seen = vec![0; 1 << 20];
    export.read(0, &mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == 63));
    drop(import);
}

#[test]
fn a_receiver_that_takes_no_notifications_holds_its_senders_process_and_no_other() {
    let (a, b) = pair();
    let mut slow = a.daemon.second("slow", &[]);
    slow.expect("exported");
    let (exporter, importer, other) = (a.daemon.node(), b.daemon.node(), b.daemon.node());
    let fast = exporter.export(Region::new(4096).unwrap()).name("y");
    let fast = fast.grant(Who::SameUser, Rights::all()).open().unwrap();
    let to_slow = import(&importer);
    let to_fast = other.import("y").node("a").timeout(PATIENCE.unwrap()).open().unwrap();
    slow.signal(rustix::process::Signal::STOP);
    const COUNT: u64 = 500; // the queue in memory holds 128
    for i in 0..COUNT {
        to_slow.send_with_notify(0, &i.to_ne_bytes()).unwrap();
    }
    for round in 1..=50u32 {
        to_fast.flag32(0).unwrap().signal(round).unwrap();
        let flag = fast.flag32(0).unwrap();
        flag.wait_until(|value| value == round, PATIENCE).unwrap();
    }
    /// Ends the other thread, also by a failure.
    struct Over<'o>(&'o std::sync::atomic::AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        // The interface has never nothing to do meanwhile.
        let busy = scope.spawn(|| {
            let mut round = 51;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                to_fast.flag32(0).unwrap().signal(round).unwrap();
                round += 1;
            }
            to_fast.fence().unwrap();
        });
        slow.signal(rustix::process::Signal::CONT);
        slow.go_on();
        slow.expect("in order");
        to_slow.fence().unwrap();
        drop(over);
        busy.join().unwrap();
    });
}

fn slow_part(_: &[String]) {
    let node = Node::connect().unwrap();
    let builder = node.export(Region::new(4096).unwrap()).name("x");
    let export = builder.grant(Who::SameUser, Rights::all()).queue().open().unwrap();
    common::say("exported");
    common::pause();
    for i in 0..500u64 {
        let event = export.next_notification(PATIENCE).unwrap().event;
        assert_eq!(event, Event::Message { offset: 0, len: 8, last_word: i });
    }
    common::say("in order");
    common::pause();
}

#[test]
fn links_outlive_the_importers_daemon_and_new_ones_wait_for_its_return() {
    for engine in engines() {
        let (a, mut b) = pair_with(engine);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 4096);
        let before = import(&importer);
        b.daemon.kill();
        before.flag32(0).unwrap().signal(1).unwrap();
        export.flag32(0).unwrap().wait_until(|value| value == 1, PATIENCE).unwrap();
        restart(&mut b);
        let after = import(&importer);
        before.flag32(0).unwrap().signal(2).unwrap();
        after.flag32(4).unwrap().signal(3).unwrap();
        export.flag32(0).unwrap().wait_until(|value| value == 2, PATIENCE).unwrap();
        export.flag32(4).unwrap().wait_until(|value| value == 3, PATIENCE).unwrap();
    }
}

/// After a restart of the exporter's daemon, once that knows the export.
fn import_again(importer: &Node) -> Import {
    let mut again = None;
    until("the new daemon knows the export", || {
        let import = importer.import("x").node("a").timeout(Duration::from_secs(5));
        again = import.open().ok();
        again.is_some()
    });
    again.unwrap()
}

#[test]
fn links_end_with_the_exporters_daemon_and_can_be_had_again_from_the_next() {
    for engine in engines() {
        let (mut a, b) = pair_with(engine);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 4096);
        let before = import(&importer);
        before.send(0, &[5; 8]).unwrap();
        before.fence().unwrap();
        a.daemon.kill();
        let end = before.flag32(64).unwrap().wait_until(|value| value == 1, PATIENCE);
        assert_eq!(reason(&end), Some(CloseReason::Unreachable));
        restart(&mut a);
        import_again(&importer).flag32(16).unwrap().signal(7).unwrap();
        // The ends of the old link, and of those that took too long, may be reported first.
        let flag = export.flag32(16).unwrap();
        until("the word has come", || flag.wait_until(|value| value == 7, PATIENCE).is_ok());
    }
}

#[test]
fn an_import_that_waits_ends_where_either_daemon_died_and_does_not_return() {
    // For its own daemon a process waits ten seconds, by whatever engine it goes on.
    let own = engines().iter().take(1).map(|engine| (engine, 1));
    for (engine, which) in engines().iter().map(|engine| (engine, 0)).chain(own) {
        let (a, b) = pair_with(engine);
        let importer = b.daemon.node();
        let pending = importer.import("never").node("a").timeout(PATIENCE.unwrap());
        let mut pending = pending.start().unwrap();
        assert!(!pending.poll().unwrap());
        let mut places = [a, b];
        places[which].daemon.kill();
        let error = pending.wait().unwrap_err().to_string();
        let says = if which == 0 { "its vmmcd" } else { "did not return" };
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn second_process() {
    common::second_process(&[("slow", slow_part)]);
}

/// H15: both interfaces receive and answer as fast as they can, with more on the way than anything holds.
fn flood((a, b): (Place, Place)) {
    const LEN: usize = 1 << 20;
    const ROUNDS: u8 = 48;
    let nodes = (a.daemon.node(), b.daemon.node());
    let exports = (export(&nodes.0, "x", LEN), export(&nodes.1, "y", LEN));
    let back = nodes.0.import("y").node("b").rights(Rights::WRITE | Rights::READ);
    let imports = (import(&nodes.1), back.timeout(PATIENCE.unwrap()).open().unwrap());
    let play = |import: &Import| {
        let mut seen = vec![0; LEN / 2];
        for round in 1..=ROUNDS {
            import.send(0, &vec![round; LEN]).unwrap();
            // An answer as long as what it has to pass.
            import.read(LEN / 4, &mut seen).unwrap();
            assert!(seen.iter().all(|&byte| byte == round), "{round}");
        }
        import.fence().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&imports.0));
        scope.spawn(|| play(&imports.1));
    });
    for export in [&exports.0, &exports.1] {
        let mut seen = vec![0; LEN];
        export.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|&byte| byte == ROUNDS));
    }
}

#[test]
fn a_flood_both_ways_ends() {
    flood(pair());
    flood(pair_over("net"));
}

/// A link was proved when it was made; what is asked for later is asked with the key of then.
#[test]
fn a_changed_key_ends_no_link_and_makes_none_until_both_nodes_have_it() {
    for engine in engines() {
        let (mut a, mut b) = pair_with(engine);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 4096);
        let before = import(&importer);
        let other = KEY.replace('0', "f");
        b.change_key(&other);
        b.daemon.kill();
        restart(&mut b);
        let flag = export.flag32(0).unwrap();
        before.flag32(0).unwrap().signal(1).unwrap();
        flag.wait_until(|value| value == 1, PATIENCE).unwrap();
        let refused = importer.import("x").node("a").timeout(PATIENCE.unwrap()).open();
        common::says(&refused.unwrap_err(), &["cluster keys differ"]);
        before.flag32(0).unwrap().signal(2).unwrap();
        flag.wait_until(|value| value == 2, PATIENCE).unwrap();
        a.change_key(&other);
        a.daemon.kill();
        restart(&mut a);
        import_again(&importer).flag32(0).unwrap().signal(3).unwrap();
        until("the word has come", || flag.wait_until(|value| value == 3, PATIENCE).is_ok());
    }
}

/// TCP does not do that; whoever is on the way may. It is no answer and no message more, but an end.
#[test]
fn what_comes_twice_ends_the_connection_and_the_next_import_makes_another() {
    for more in ["", "[data]\nseal = true\n"] {
        let (a, b, proxy) = apart_with(more);
        let (exporter, importer) = (a.daemon.node(), b.daemon.node());
        let export = export(&exporter, "x", 4096);
        let first = import(&importer);
        first.send(0, b"before").unwrap();
        first.fence().unwrap();
        proxy.repeat();
        let _ = first.fence(); // the first of two answers may have come before the end
        until("it has ended", || first.check_open().is_err());
        assert_eq!(first.check_open().unwrap_err().reason, CloseReason::Unreachable);
        // The daemons' own connections likewise, from their first message on: the proof is refused, or the question is asked again.
        proxy.cut();
        proxy.repeat();
        let second = match importer.import("x").node("a").timeout(PATIENCE.unwrap()).open() {
            Ok(second) => second,
            Err(refused) => {
                common::says(&refused, &["node \"a\""]);
                import(&importer)
            }
        };
        second.send(6, b" and after").unwrap();
        second.fence().unwrap();
        let mut seen = [0; 16];
        export.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"before and after");
    }
}

/// Time limits cross between processes and nodes as what is left of them; no clock is compared with another.
#[test]
fn clocks_that_differ_by_days_disturb_no_time_limit() {
    let (a, mut b) = pair();
    let far = ["--time", "--monotonic", "1000000", "--boottime", "1000000"];
    let own: &[&str] = if rustix::process::geteuid().is_root() {
        &["unshare"]
    } else {
        &["unshare", "--user", "--map-current-user"]
    };
    let starter: Vec<&str> = own.iter().copied().chain(far).collect();
    b.daemon.kill();
    b.daemon.restart_by(&starter, &["--cluster", b.file().to_str().unwrap()]);
    for (here, there, node) in [(&a, &b, "b"), (&b, &a, "a")] {
        let (exporter, importer) = (there.daemon.node(), here.daemon.node());
        let late = importer.import("late").node(node).timeout(Duration::from_millis(200)).open();
        common::says(&late.unwrap_err(), &["late"]);
        let late = importer.import("late").node(node).timeout(PATIENCE.unwrap()).start().unwrap();
        let export = export(&exporter, "late", 4096);
        let import = late.wait().unwrap();
        import.flag32(0).unwrap().signal(1).unwrap();
        import.fence().unwrap();
        export.flag32(0).unwrap().wait_until(|value| value == 1, PATIENCE).unwrap();
        assert_eq!(export.unexport().unwrap().as_slice()[..4], 1u32.to_ne_bytes());
    }
}
