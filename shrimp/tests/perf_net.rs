//! What `shrimp perf net` prints and saves: that every figure is there, and none of them how large.

mod common;
use common::{prepare, run, shrimp};
use serde_json::Value;

/// The rows of a list that have these values.
fn rows<'r>(list: &'r Value, wanted: &[(&str, &str)]) -> Vec<&'r Value> {
    let has = |row: &&Value| wanted.iter().all(|(name, value)| row[*name] == *value);
    list.as_array().unwrap().iter().filter(has).collect()
}

#[track_caller]
fn positive(value: &Value) -> f64 {
    let number = value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    assert!(number > 0.0, "{number}");
    number
}

#[test]
fn both_kinds_of_update_are_shown_side_by_side_with_their_packets() {
    prepare();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.json");
    let mut command = shrimp(dir.path());
    command.args(["perf", "net", "--quick", "--rounds", "1", "--json"]).arg(&file);
    command.arg("--svg").arg(dir.path());
    let said = run(&mut command).expect(0).out;
    for words in [
        "until the reader has it  AU over tcp  DU over tcp",
        "a stream of such pieces, MB/s",
        "sparse: DU, gathered and scattered",
        "AU against DU over TCP (M34)",
        "combining against none (M32)",
        "budgets:",
    ] {
        assert!(said.contains(words), "no {words:?} in\n{said}");
    }
    for (graph, title) in [("net-latency", "until the reader has it"), ("net-bandwidth", "streams")]
    {
        let drawn = std::fs::read_to_string(dir.path().join(graph).with_extension("svg")).unwrap();
        for words in [title, "AU over tcp", "DU over tcp"] {
            assert!(drawn.contains(words), "no {words:?} in {graph}");
        }
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for way in ["au", "du"] {
        let passes = rows(&report["one_way"], &[("over", "tcp"), ("way", way)]);
        let lens: Vec<u64> = passes.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        assert_eq!(lens, [4, 8, 64, 1024, 4096]);
        assert!(passes.iter().all(|row| positive(&row["median_ns"]) > 0.0));
        let streams = rows(&report["streams"], &[("over", "tcp"), ("way", way)]);
        assert_eq!(streams.len(), 3);
        assert!(streams.iter().all(|row| positive(&row["bytes_per_s"]) > 0.0));
    }
    // The packets are those that the module says: combining ends with a page, a long message with 256 KiB.
    let packets =
        |id| positive(&rows(&report["contest"], &[("over", "tcp"), ("id", id)])[0]["packets"]);
    assert_eq!(["sparse_au", "sparse_du"].map(packets), [2048.0, 2048.0]);
    assert_eq!(["sparse_du_gathered", "bulk_au", "bulk_du"].map(packets), [1.0, 128.0, 2.0]);
    let combining =
        |stores| positive(&rows(&report["combining"], &[("stores", stores)])[0]["packets_ratio"]);
    assert_eq!(["bulk", "sparse"].map(combining), [512.0, 1.0]);
}
