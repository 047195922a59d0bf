//! The example of the crate's documentation, run by the launcher on several nodes.

mod build;

use build::{Job, shrimp_run};
use std::path::Path;

#[path = "../examples/neighbours.rs"]
#[allow(unreachable_pub)] // a program of its own
mod neighbours;

/// What a node of the test below does.
#[test]
fn node() {
    if nx::Job::from_env().expect("a launcher's variables").is_some() {
        neighbours::main().expect("the example ends well");
    }
}

#[test]
fn the_example_of_the_documentation_does_what_it_says() {
    build::target();
    let own = std::env::current_exe().expect("own path");
    let arguments = ["--exact", "node", "--nocapture", "--test-threads=1"];
    let done = shrimp_run(&Job::new(), 4, Path::new(&own), &arguments);
    assert_eq!(done.code, Some(0), "{done}");
    for (node, before) in [(0, 3), (1, 0), (2, 1), (3, 2)] {
        let heard = format!("{node}: \"hello from {before}\" of node {before}");
        assert!(done.out.contains(&heard), "{heard}: {done}");
        assert!(done.out.contains(&format!("{node}: the sum is 6")), "{node}: {done}");
    }
}
