use super::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

fn variables(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_launcher_is_found_by_its_variables_and_bad_ones_are_named() {
    let get = |pairs: &[(&str, &str)]| {
        let all = variables(pairs);
        find(&move |name: &str| all.get(name).cloned())
    };
    assert_eq!(get(&[]).unwrap(), None);
    let fd = [("PMI_FD", "5"), ("PMI_RANK", "1"), ("PMI_SIZE", "4")];
    assert_eq!(get(&fd).unwrap(), Some(Way::Fd { fd: 5, rank: 1, size: 4 }));
    let port = [("PMI_PORT", "here:77"), ("PMI_ID", "3")];
    let expected = Way::Port { address: "here:77".into(), id: 3 };
    assert_eq!(get(&port).unwrap(), Some(expected));
    for (pairs, bad) in [
        (&[("PMI_FD", "x"), ("PMI_RANK", "1"), ("PMI_SIZE", "4")][..], "PMI_FD"),
        (&[("PMI_FD", "5"), ("PMI_SIZE", "4")], "PMI_RANK"),
        (&[("PMI_PORT", "here:77")], "PMI_ID"),
    ] {
        assert!(get(pairs).unwrap_err().to_string().contains(bad));
    }
}

/// Answers the lines that a launcher gets with those of a script.
fn scripted(script: Vec<(&'static str, &'static str)>) -> (Way, Fd, std::thread::JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let served = std::thread::spawn(move || {
        let mut writer = theirs.try_clone().unwrap();
        let mut reader = BufReader::new(theirs);
        for (asked, answer) in script {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert!(line.starts_with(asked), "{line:?} instead of {asked:?}");
            writer.write_all(answer.as_bytes()).unwrap();
        }
    });
    let fd = Fd::from(std::os::fd::OwnedFd::from(ours));
    (Way::Fd { fd: fd.as_raw_fd(), rank: 1, size: 2 }, fd, served)
}

const WORD: &str = "77-ab:2:000102030405060708090a0b0c0d0e0f";

/// Joins as rank 1 of 2 on the host `here`, beside a node 0 on `other`.
fn joined_beside(other: &'static str) -> Result<Job, PmiError> {
    let (way, fd, served) = scripted(vec![
        ("cmd=init pmi_version=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1\n"),
        ("cmd=put kvsname=kvs_1 key=nx-host-1 value=here", "cmd=put_result rc=0 msg=success\n"),
        ("cmd=barrier_in", "cmd=barrier_out\n"),
        (
            "cmd=get kvsname=kvs_1 key=nx-job",
            "cmd=get_result rc=0 msg=success value=77-ab:2:000102030405060708090a0b0c0d0e0f\n",
        ),
        ("cmd=get kvsname=kvs_1 key=nx-host-0", other),
        ("cmd=get kvsname=kvs_1 key=nx-host-1", "cmd=get_result rc=0 msg=success value=here\n"),
        ("cmd=finalize", "cmd=finalize_ack\n"),
    ]);
    let joined = join(&way, Version::One, Some(fd), "here").map(|(job, mut launcher)| {
        launcher.finish();
        job
    });
    if joined.is_ok() {
        served.join().unwrap();
    }
    joined
}

#[test]
fn pmi_1_takes_the_job_that_node_0_put() {
    let job = joined_beside("cmd=get_result rc=0 msg=success value=here\n").unwrap();
    assert_eq!(job, Job::from_word(WORD, 1).unwrap());
}

#[test]
fn ranks_on_several_hosts_know_who_is_where() {
    let job = joined_beside("cmd=get_result rc=0 msg=success value=there\n").unwrap();
    assert_eq!(*job.hosts, ["there", "here"].map(str::to_owned));
    let long = "cmd=get_result rc=0 msg=success value=12345678901234567890123456789012345678901234567890123456789012345\n";
    let error = joined_beside(long).unwrap_err().to_string();
    assert!(error.contains("NX_HOST"), "{error}");
}

/// A launcher must not take the name of a host for keys and commands of its own.
#[test]
fn a_host_that_would_be_more_than_a_word_is_not_told() {
    for host in ["", "two words", "x\ncmd=abort exitcode=0", "x;rank=0", "rc=1", "tab\there"] {
        // What is said before the host's name, and nothing after it: the script has ended.
        let (way, fd, served) = scripted(vec![
            ("cmd=init", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
            ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1\n"),
        ]);
        let error = join(&way, Version::One, Some(fd), host).unwrap_err();
        assert!(matches!(&error, PmiError::Host(named) if named == host), "{error}");
        assert!(error.to_string().contains("NX_HOST"), "{error}");
        served.join().unwrap();
    }
}

#[test]
fn a_refusal_and_an_end_are_errors_that_say_what_was_asked() {
    let (way, fd, served) = scripted(vec![("cmd=init", "cmd=response_to_init rc=-1\n")]);
    let error = join(&way, Version::One, Some(fd), "here").unwrap_err().to_string();
    assert!(error.contains("rc=-1") && error.contains("init"), "{error}");
    served.join().unwrap();
    let (way, fd, served) = scripted(vec![]);
    served.join().unwrap();
    assert!(matches!(join(&way, Version::Two, Some(fd), "here"), Err(PmiError::Io { .. })));
}

#[test]
fn slurm_gets_pmi_2_and_the_user_may_choose() {
    let get = |pairs: &[(&str, &str)]| {
        let all = variables(pairs);
        choose(&move |name: &str| all.get(name).cloned())
    };
    assert_eq!(get(&[]), Version::One);
    assert_eq!(get(&[("SLURM_JOBID", "1"), ("PMI_JOBID", "1.0")]), Version::Two);
    assert_eq!(get(&[("NX_PMI", "2")]), Version::Two);
    assert_eq!(get(&[("NX_PMI", "1"), ("SLURM_JOBID", "1"), ("PMI_JOBID", "1.0")]), Version::One);
}

#[test]
fn an_end_waits_until_its_words_were_read_but_not_for_ever() {
    let long = Duration::from_secs(60);
    let (reader, writer) = std::io::pipe().unwrap();
    await_reader(&[writer.as_fd()], long); // nothing was written
    (&writer).write_all(b"node 2 died").unwrap();
    await_reader(&[writer.as_fd()], Duration::from_millis(5)); // nobody reads
    let read = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let mut words = [0; 11];
        (&reader).read_exact(&mut words).unwrap();
        reader
    });
    await_reader(&[writer.as_fd()], long);
    let reader = read.join().unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&reader).unwrap(), 0, "it waited until all was read");
    // What is no pipe has nobody to wait for: of a file this would be what lies behind its offset.
    let file = tempfile::tempfile().unwrap();
    file.set_len(10).unwrap();
    await_reader(&[file.as_fd()], long);
}
