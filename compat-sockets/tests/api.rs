//! `VmmcStream` and `VmmcListener`: both ends in Rust, and one end an unmodified program.
//!
//! Settings are read once per process, so each test runs its body in a process of its own, this
//! program with one test chosen, against a private daemon.
#![allow(missing_docs)]

mod common;

use common::daemon::Daemon;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vmmc_sockets::{VmmcListener, VmmcStream};

/// Runs `body` in a process of its own. With a daemon if there is one.
fn alone(test: &str, daemon: Option<&Daemon>, body: impl FnOnce()) {
    if std::env::var_os("VMMC_API_TEST").is_some_and(|name| name == test) {
        return body();
    }
    let absent = tempfile::tempdir().unwrap();
    let socket = daemon.map_or(absent.path().join("none"), |daemon| daemon.path.clone());
    let status = common::without_settings(Command::new(std::env::current_exe().unwrap()))
        .args([test, "--exact", "--nocapture"])
        .env("VMMC_API_TEST", test)
        .env("VMMC_SOCKET", socket)
        .env("VMMC_DAEMON", "none")
        .env("VMMC_API_DAEMON", daemon.map_or(0, Daemon::pid).to_string())
        .status()
        .unwrap();
    assert!(status.success(), "{test}: {status}");
}

/// A daemon, unless this is the process that runs the body.
fn daemon() -> Option<Daemon> {
    std::env::var_os("VMMC_API_TEST").is_none().then(Daemon::start)
}

fn pair() -> (VmmcStream, VmmcStream) {
    let listener = VmmcListener::bind("127.0.0.1:0").unwrap();
    let near = VmmcStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, address) = listener.accept().unwrap();
    assert_eq!(address, near.local_addr().unwrap());
    (near, far)
}

/// Takes turns until both ends are upgraded. (Hangs if that never happens.)
fn warm_up(mut near: &VmmcStream, mut far: &VmmcStream) {
    let mut byte = [0];
    while !(near.is_upgraded() && far.is_upgraded()) {
        near.write_all(b"p").unwrap();
        far.read_exact(&mut byte).unwrap();
        far.write_all(&byte).unwrap();
        near.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"p");
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn both_ends_in_rust_go_through_shared_memory() {
    let daemon = daemon();
    alone("both_ends_in_rust_go_through_shared_memory", daemon.as_ref(), || {
        let (near, far) = pair();
        warm_up(&near, &far);
        let data = pattern(3 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| (&near).write_all(&data).unwrap());
            scope.spawn(|| (&far).write_all(&data).unwrap());
            for mut end in [&near, &far] {
                let mut got = vec![0; data.len()];
                end.read_exact(&mut got).unwrap();
                assert!(got == data);
            }
        });
        // Half-close, then the end, at both ends.
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0]).unwrap(), 0);
        (&far).write_all(b"after").unwrap();
        drop(far);
        let mut rest = String::new();
        (&near).read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "after");
    });
}

/// Without a daemon everything works, by TCP.
#[test]
fn without_a_daemon_it_is_plain_tcp() {
    alone("without_a_daemon_it_is_plain_tcp", None, || {
        let (mut near, mut far) = pair();
        let data = pattern(100_000);
        let writer = std::thread::spawn(move || {
            for part in data.chunks(1000) {
                near.write_all(part).unwrap();
            }
            assert!(!near.is_upgraded());
        });
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        assert!(got == pattern(100_000));
    });
}

#[test]
fn methods_do_what_those_of_tcp_stream_do() {
    let daemon = daemon();
    alone("methods_do_what_those_of_tcp_stream_do", daemon.as_ref(), || {
        let (near, far) = pair();
        warm_up(&near, &far);
        assert_eq!(near.peer_addr().unwrap(), far.local_addr().unwrap());

        near.set_nonblocking(true).unwrap();
        let error = (&near).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        near.set_nonblocking(false).unwrap();

        near.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(near.read_timeout().unwrap(), Some(Duration::from_millis(100)));
        let error = (&near).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        near.set_read_timeout(None).unwrap();

        assert!(!near.nodelay().unwrap(), "ours, not the kernel's");
        near.set_nodelay(true).unwrap();
        assert!(near.nodelay().unwrap());

        let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
        assert_eq!((&far).write_vectored(&parts).unwrap(), 7);
        let mut seen = [0; 7];
        assert_eq!(near.peek(&mut seen).unwrap(), 7);
        let copy = near.try_clone().unwrap();
        drop(near);
        let mut got = [0; 7];
        (&copy).read_exact(&mut got).unwrap();
        assert_eq!((&seen, &got), (b"one two", b"one two"));

        // A peer that is gone: no signal, an error.
        drop(far);
        let error = loop {
            if let Err(error) = (&copy).write(b"x") {
                break error;
            }
        };
        let expected = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        assert!(expected.contains(&error.kind()), "{error}");
        assert!(
            VmmcStream::connect_timeout(&"127.0.0.1:1".parse().unwrap(), Duration::from_secs(5))
                .is_err()
        );
    });
}

/// Back to an ordinary stream, with what was not read yet.
#[test]
fn a_stream_becomes_plain_tcp_again() {
    let daemon = daemon();
    alone("a_stream_becomes_plain_tcp_again", daemon.as_ref(), || {
        let (near, mut far) = pair();
        warm_up(&near, &far);
        far.write_all(b"unread").unwrap();
        // The peer has to make a call on its end to do its part.
        let peer = std::thread::spawn(move || {
            let mut byte = [0];
            far.read_exact(&mut byte).unwrap();
            far.write_all(b" and more").unwrap();
        });
        let mut plain = near.into_tcp().unwrap();
        plain.write_all(b"x").unwrap();
        peer.join().unwrap();
        let mut text = String::new();
        plain.read_to_string(&mut text).unwrap();
        assert_eq!(text, "unread and more");
    });
}

const ECHO: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
";

/// An unmodified program under the preload library.
fn preloaded_echo(daemon: &Daemon) -> (Child, SocketAddr) {
    let mut child = common::without_settings(Command::new("python3"))
        .args(["-c", ECHO])
        .env("LD_PRELOAD", &common::artefacts().library)
        .env("VMMC_SOCKET", &daemon.path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, ([127, 0, 0, 1], line.trim().parse().unwrap()).into())
}

/// The address of the program that the test proper has started.
fn echo_address() -> SocketAddr {
    std::env::var("VMMC_API_ECHO").unwrap().parse().unwrap()
}

fn against_a_program(test: &str, body: impl FnOnce()) {
    if std::env::var_os("VMMC_API_TEST").is_some() {
        return alone(test, None, body);
    }
    let daemon = Daemon::start();
    let (mut child, address) = preloaded_echo(&daemon);
    let status = common::without_settings(Command::new(std::env::current_exe().unwrap()))
        .args([test, "--exact", "--nocapture"])
        .env("VMMC_API_TEST", test)
        .env("VMMC_API_ECHO", address.to_string())
        .env("VMMC_SOCKET", &daemon.path)
        .env("VMMC_DAEMON", "none")
        .status();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(status.unwrap().success());
}

#[test]
fn the_other_end_may_be_a_preloaded_program() {
    against_a_program("the_other_end_may_be_a_preloaded_program", || {
        let stream = VmmcStream::connect(echo_address()).unwrap();
        let mut byte = [0];
        while !stream.is_upgraded() {
            (&stream).write_all(b"p").unwrap();
            (&stream).read_exact(&mut byte).unwrap();
        }
        let data = pattern(2 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(&data).unwrap());
            let mut got = vec![0; data.len()];
            (&stream).read_exact(&mut got).unwrap();
            assert!(got == data);
        });
    });
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use vmmc_sockets::{AsyncVmmcListener, AsyncVmmcStream};

    fn run(future: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_io().build().unwrap().block_on(future);
    }

    /// More than a ring holds in both directions at once, so that readers and writers wait.
    async fn exchange(near: AsyncVmmcStream, far: Option<AsyncVmmcStream>) {
        let data = std::sync::Arc::new(pattern(4 << 20));
        let mut tasks = Vec::new();
        for stream in std::iter::once(near).chain(far) {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let sent = data.clone();
            tasks.push(tokio::spawn(async move {
                writer.write_all(&sent).await.unwrap();
                // Kept open until the other side has read.
                std::mem::forget(writer);
            }));
            let expected = data.clone();
            tasks.push(tokio::spawn(async move {
                let mut got = vec![0; expected.len()];
                reader.read_exact(&mut got).await.unwrap();
                assert!(got == *expected);
                std::mem::forget(reader);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[test]
    fn tasks_wait_for_data_and_for_room() {
        let daemon = daemon();
        alone("with_tokio::tasks_wait_for_data_and_for_room", daemon.as_ref(), || {
            run(async {
                let listener = VmmcListener::bind("127.0.0.1:0").unwrap();
                let listener = AsyncVmmcListener::new(listener).unwrap();
                let address = listener.get_ref().local_addr().unwrap();
                let connecting = tokio::spawn(AsyncVmmcStream::connect(address));
                let (mut far, _) = listener.accept().await.unwrap();
                let mut near = connecting.await.unwrap().unwrap();
                let mut byte = [0];
                while !(near.get_ref().is_upgraded() && far.get_ref().is_upgraded()) {
                    near.write_all(b"p").await.unwrap();
                    far.read_exact(&mut byte).await.unwrap();
                    far.write_all(b"q").await.unwrap();
                    near.read_exact(&mut byte).await.unwrap();
                }
                exchange(near, Some(far)).await;
            });
        });
    }

    /// Two streams that are upgraded, of one runtime.
    async fn upgraded_pair() -> (AsyncVmmcStream, AsyncVmmcStream) {
        let (near, far) = pair();
        warm_up(&near, &far);
        (AsyncVmmcStream::new(near).unwrap(), AsyncVmmcStream::new(far).unwrap())
    }

    /// More than a ring holds, and less than the kernel's buffers take.
    const MUCH: usize = 1 << 20;

    #[test]
    fn tasks_that_both_send_before_they_read_go_on() {
        let daemon = daemon();
        let name = "with_tokio::tasks_that_both_send_before_they_read_go_on";
        alone(name, daemon.as_ref(), || {
            run(async {
                let (near, far) = upgraded_pair().await;
                let talks = |mut stream: AsyncVmmcStream| async move {
                    let data = pattern(MUCH);
                    stream.write_all(&data).await.unwrap();
                    let mut got = vec![0; MUCH];
                    stream.read_exact(&mut got).await.unwrap();
                    assert!(got == data);
                    stream
                };
                let far = tokio::spawn(talks(far));
                let near = talks(near).await;
                let far = far.await.unwrap();
                assert!(!near.get_ref().is_upgraded() && !far.get_ref().is_upgraded());
            });
        });
    }

    #[test]
    fn a_task_that_nobody_reads_from_goes_on() {
        let daemon = daemon();
        let name = "with_tokio::a_task_that_nobody_reads_from_goes_on";
        alone(name, daemon.as_ref(), || {
            run(async {
                let (mut near, mut far) = upgraded_pair().await;
                let data = pattern(MUCH);
                near.write_all(&data).await.unwrap();
                let mut got = vec![0; MUCH];
                far.read_exact(&mut got).await.unwrap();
                assert!(got == data);
            });
        });
    }

    #[test]
    fn a_task_talks_to_a_preloaded_program() {
        against_a_program("with_tokio::a_task_talks_to_a_preloaded_program", || {
            run(async {
                let mut stream = AsyncVmmcStream::connect(echo_address()).await.unwrap();
                let mut byte = [0];
                while !stream.get_ref().is_upgraded() {
                    stream.write_all(b"p").await.unwrap();
                    stream.read_exact(&mut byte).await.unwrap();
                }
                exchange(stream, None).await;
            });
        });
    }

    #[test]
    fn the_end_wakes_a_reader() {
        let daemon = daemon();
        alone("with_tokio::the_end_wakes_a_reader", daemon.as_ref(), || {
            run(async {
                let (near, far) = pair();
                warm_up(&near, &far);
                let mut near = AsyncVmmcStream::new(near).unwrap();
                let reader = tokio::spawn(async move {
                    let mut text = String::new();
                    near.read_to_string(&mut text).await.unwrap();
                    text
                });
                (&far).write_all(b"the last words").unwrap();
                drop(far);
                assert_eq!(reader.await.unwrap(), "the last words");
            });
        });
    }
}

/// More ends than the daemon's queue has room for while the daemon stands still.
#[test]
fn what_a_busy_daemon_was_not_told_it_is_told_later() {
    let daemon = daemon();
    alone("what_a_busy_daemon_was_not_told_it_is_told_later", daemon.as_ref(), || {
        let pid: i32 = std::env::var("VMMC_API_DAEMON").unwrap().parse().unwrap();
        let signal = |signal| {
            rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal)
        };
        let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let pairs = |count: u32| -> Vec<_> {
            let warm = |_| {
                let pair = pair();
                warm_up(&pair.0, &pair.1);
                pair
            };
            (0..count).map(warm).collect()
        };
        let first = pairs(1);
        let few = descriptors();
        let many = pairs(300);
        // It may have had a few more for a moment, when it was asked first.
        assert!(descriptors() >= few + 250, "a segment is a descriptor of the daemon");
        signal(rustix::process::Signal::STOP).unwrap();
        drop(many);
        signal(rustix::process::Signal::CONT).unwrap();
        // Each new pair is an answer of the daemon's, which has heard of all that was said before.
        for _ in 0..1000 {
            drop(pairs(1));
            if descriptors() < few + 30 {
                return drop(first);
            }
        }
        panic!("{} descriptors of {few} and 600", descriptors());
    });
}
