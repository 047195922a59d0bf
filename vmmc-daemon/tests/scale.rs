//! Many of everything, and a restart under them: 1,000 clients, 10,000 exports and links.

mod common;
use common::*;

const CLIENTS: usize = 1000;
const EXPORTS_EACH: usize = 10;

#[test]
fn a_thousand_clients_with_ten_thousand_exports_and_links_survive_a_takeover() {
    raise_descriptor_limit();
    let mut old = Daemon::start();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&old.path)).collect();
    let name = |client: usize, export: usize| format!("{client}/{export}");
    for (i, client) in clients.iter_mut().enumerate() {
        for j in 0..EXPORTS_EACH {
            client.export(name(i, j));
        }
    }
    // Each imports from its neighbour.
    for i in 0..CLIENTS {
        let from = (i + 1) % CLIENTS;
        for j in 0..EXPORTS_EACH {
            clients[i].import(name(from, j));
            clients[from].receive_opened();
        }
    }
    let before = old.snapshot();
    assert_eq!(before.clients.len(), CLIENTS + 1);
    assert_eq!(before.exports.len(), CLIENTS * EXPORTS_EACH);
    assert_eq!(before.links.len(), CLIENTS * EXPORTS_EACH);

    let new = Daemon::start_in(old.dir.clone(), &["--replace"], &[]);
    assert!(old.wait().success());
    let after = new.snapshot();
    assert_eq!(after.exports, before.exports);
    assert_eq!(after.links, before.links);
    for (i, client) in clients.iter_mut().enumerate() {
        client.export(name(i, EXPORTS_EACH));
    }
    drop(clients);
    eventually("all are gone", || {
        let snapshot = new.snapshot();
        (snapshot.clients.len() == 1 && snapshot.exports.is_empty() && snapshot.links.is_empty())
            .then_some(())
    });
}
