//! A link made of the segment of an earlier one.

mod common;
#[path = "support/raw.rs"]
#[allow(dead_code, unreachable_pub)] // as in `support`
mod raw;

use common::{Daemon, PATIENCE, export, import, open, until};
use raw::Raw;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use vmmc::control::message::Refusal;
use vmmc::counters::index::{IMPORTS, SEGMENTS_REUSED};
use vmmc::{Event, Export, Node, Region, Rights, Who};

fn reused(node: &Node) -> u64 {
    node.counters().get(SEGMENTS_REUSED)
}

type Words = Arc<Mutex<Vec<u64>>>;

/// An export whose handler keeps the last words that it is told.
fn listening(node: &Node, name: &str) -> (Export, Words) {
    let words = Words::default();
    let seen = words.clone();
    let builder = node.export(Region::new(1 << 16).unwrap()).name(name);
    let builder = builder.handler(move |notification| {
        if let Event::Message { last_word, .. } = notification.event {
            seen.lock().unwrap().push(last_word);
        }
    });
    (open(builder), words)
}

/// Imports, says `word`, and ends the import.
fn tell(importer: &Node, exporter: &Node, name: &str, words: &Words, word: u64) {
    let import = import(importer, name);
    import.send_notification(0, 8, word).unwrap();
    until("it is heard", || {
        exporter.dispatch();
        words.lock().unwrap().last() == Some(&word)
    });
}

#[test]
fn a_link_of_a_used_segment_begins_like_one_of_a_fresh_one() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let (export, words) = listening(&exporter, "x");
    let (mut links, mut word) = (0, 0);
    until("twenty were made so", || {
        // More than the link before, or fewer: positions in the queue are not those of the last one.
        let say = word + 1..=word + 1 + links * 7 % 5;
        (links, word) = (links + 1, *say.end());
        let import = import(&importer, "x");
        if links % 2 == 0 {
            // It looks at the queue before anything is in it.
            export.wait_importers(1, PATIENCE).unwrap();
            exporter.dispatch();
        }
        for word in say {
            import.send_notification(0, 8, word).unwrap();
        }
        until("they are heard", || {
            exporter.dispatch();
            words.lock().unwrap().last() == Some(&word)
        });
        drop(import);
        // Its end is seen here a moment later than there.
        until("it has ended", || export.importers().is_empty());
        reused(&importer) >= 20
    });
    let all: Vec<u64> = (1..=word).collect();
    assert_eq!(*words.lock().unwrap(), all, "each once, and none of an earlier link");
    assert_eq!(importer.counters().get(IMPORTS), links);

    // What the exporter says in a segment concerns the link that it says it in.
    export.discard_notifications();
    let deaf = import(&importer, "x");
    export.wait_importers(1, PATIENCE).unwrap();
    deaf.send_notification(0, 8, 1000).unwrap();
    drop(deaf);
    until("it has ended", || export.importers().is_empty());
    export.accept_notifications();
    let (before, mut word) = (reused(&importer), 1000);
    until("all kept ones were used again", || {
        word += 1;
        tell(&importer, &exporter, "x", &words, word);
        until("it has ended", || export.importers().is_empty());
        reused(&importer) >= before + 20
    });
    assert!(!words.lock().unwrap().contains(&1000));
}

#[test]
fn a_segment_follows_its_exporter_and_not_the_name() {
    let daemon = Daemon::start();
    let (one, other, importer) = (daemon.node(), daemon.node(), daemon.node());
    let (export, words) = listening(&one, "x");
    until("a segment was used again", || {
        tell(&importer, &one, "x", &words, 1);
        reused(&importer) > 0
    });
    until("its last link has ended", || export.importers().is_empty());
    drop(export);
    let before = reused(&importer);
    let (export, words) = listening(&other, "x");
    tell(&importer, &other, "x", &words, 2);
    assert_eq!(reused(&importer), before, "its earlier exporter has it mapped");
    until("it has ended", || export.importers().is_empty());
    until("the other's is used again", || {
        tell(&importer, &other, "x", &words, 3);
        reused(&importer) > before
    });
    drop(export);
}

#[test]
fn numbers_of_one_process_share_segments_and_two_links_at_once_do_not() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let exports: Vec<Export> = (1..4u32)
        .map(|number| {
            let builder = exporter.export(Region::new(4096).unwrap()).name(number);
            builder.grant(Who::SameUser, Rights::all()).open().unwrap()
        })
        .collect();
    let import = |number: u32| {
        let builder = importer.import(number).process(std::process::id());
        builder.rights(Rights::all()).open().unwrap()
    };
    drop(import(1));
    until("it is free", || {
        exports[0].importers().is_empty() && {
            let (second, third) = (import(2), import(3));
            second.send(0, b"second").unwrap();
            third.send(0, b"third").unwrap();
            exports[1].wait_importers(1, PATIENCE).unwrap();
            exports[2].wait_importers(1, PATIENCE).unwrap();
            second.check_open().unwrap();
            third.check_open().unwrap();
            reused(&importer) > 0
        }
    });
}

/// Only one refusal is for the segment: the others are the program's.
#[test]
fn other_refusals_are_told_as_they_are() {
    let daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let (export, words) = listening(&exporter, "x");
    until("a segment was used again", || {
        tell(&importer, &exporter, "x", &words, 1);
        reused(&importer) > 0
    });
    until("its last link has ended", || export.importers().is_empty());
    drop(export);
    let patience = std::time::Duration::from_millis(60);
    match importer.import("x").timeout(patience).open().unwrap_err() {
        vmmc::error::ImportError::Refused(Refusal::NoSuchExport { waited_ms, .. }) => {
            assert!(waited_ms >= 60, "{waited_ms}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exporter_that_never_says_it_is_done_gets_a_fresh_one_each_time() {
    let daemon = Daemon::start();
    let mut exporter = Raw::connect(&daemon.socket());
    let (_memory, file) = raw::sealed(4096);
    let grant = vmmc::id::Grant { who: Who::SameUser, rights: Rights::all() };
    exporter.try_export("x", 4096, vec![grant], &[file.as_fd()]).unwrap();
    let importer = daemon.node();
    for _ in 0..20 {
        drop(import(&importer, "x"));
    }
    assert_eq!(importer.counters().get(IMPORTS), 20);
    assert_eq!(reused(&importer), 0);
}

#[test]
fn after_a_crash_of_the_daemon_links_are_made_as_before() {
    let mut daemon = Daemon::start();
    let (exporter, importer) = (daemon.node(), daemon.node());
    let (export_, words) = listening(&exporter, "x");
    let other = export(&exporter, "y", 4096);
    for round in 0..4 {
        tell(&importer, &exporter, "x", &words, 10 * round + 1);
        until("it has ended", || export_.importers().is_empty());
        daemon.kill();
        daemon.restart();
        tell(&importer, &exporter, "x", &words, 10 * round + 2);
        drop(import(&importer, "y"));
    }
    drop(other);
}
