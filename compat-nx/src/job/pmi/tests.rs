use super::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
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

#[test]
fn pmi_1_takes_the_job_that_node_0_put() {
    let (way, fd, served) = scripted(vec![
        ("cmd=init pmi_version=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1\n"),
        ("cmd=barrier_in", "cmd=barrier_out\n"),
        (
            "cmd=get kvsname=kvs_1 key=nx-job",
            "cmd=get_result rc=0 msg=success value=77-ab:2:000102030405060708090a0b0c0d0e0f\n",
        ),
        ("cmd=finalize", "cmd=finalize_ack\n"),
    ]);
    let (job, mut launcher) = join(&way, Version::One, Some(fd)).unwrap();
    assert_eq!(job, Job::from_word(WORD, 1).unwrap());
    launcher.finish();
    served.join().unwrap();
}

#[test]
fn a_refusal_and_an_end_are_errors_that_say_what_was_asked() {
    let (way, fd, served) = scripted(vec![("cmd=init", "cmd=response_to_init rc=-1\n")]);
    let error = join(&way, Version::One, Some(fd)).unwrap_err().to_string();
    assert!(error.contains("rc=-1") && error.contains("init"), "{error}");
    served.join().unwrap();
    let (way, fd, served) = scripted(vec![]);
    served.join().unwrap();
    assert!(matches!(join(&way, Version::Two, Some(fd)), Err(PmiError::Io { .. })));
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
