//! A node whose daemon dies and comes again.

#![allow(unreachable_pub)]

use crate::cluster::Place;

/// Kills the daemon of a node, if it lives, and starts another, in the same namespace.
pub fn restart(place: &mut Place) {
    let (starter, file) = (place.starter(), place.file());
    let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
    place.daemon.kill();
    place.daemon.restart_by(&starter, &["--cluster", file.to_str().unwrap()]);
}
