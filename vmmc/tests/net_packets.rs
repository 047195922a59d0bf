//! What goes over the wire between two nodes, caught on the way and decoded (H3).

#[path = "support/cluster.rs"]
mod cluster;
mod common;
#[path = "support/proxy.rs"]
mod proxy;

use cluster::{address_of, pair_by};
use common::{PATIENCE, export, until};
use proxy::Proxy;
use vmmc::transport::net::frame::{Flags, HEADER_LEN, Header, Kind, PAGE};
use vmmc::{Combining, Import, Rights};

/// All of what was heard, packet by packet: nothing lies before, between or behind them.
fn packets(mut heard: &[u8]) -> Option<Vec<(Header, &[u8])>> {
    let mut found = Vec::new();
    while !heard.is_empty() {
        let (head, rest) = heard.split_first_chunk::<HEADER_LEN>()?;
        let header = Header::decode(head).unwrap();
        let (body, rest) = rest.split_at_checked(header.body_len() as usize)?;
        found.push((header, body));
        heard = rest;
    }
    Some(found)
}

/// An import whose packets can be heard.
struct Heard {
    import: Import,
    proxy: Proxy,
}

impl Heard {
    /// The packets of something that is sent, but for the fence behind them.
    fn packets_of(&self, send: impl FnOnce(&Import)) -> Vec<(Header, Vec<u8>)> {
        self.proxy.listen();
        send(&self.import);
        self.import.fence().unwrap();
        let heard = self.proxy.heard();
        let found = packets(&heard).expect("whole packets");
        let ((fence, none), packets) = found.split_last().expect("a fence at least");
        assert_eq!((fence.kind, none.len()), (Kind::Fence, 0));
        packets.iter().map(|(header, body)| (*header, body.to_vec())).collect()
    }

    /// One packet.
    fn packet_of(&self, send: impl FnOnce(&Import)) -> (Header, Vec<u8>) {
        let mut packets = self.packets_of(send);
        assert_eq!(packets.len(), 1, "{packets:?}");
        packets.pop().unwrap()
    }
}

fn destination(header: &Header) -> (u64, u64) {
    (header.page.into(), header.offset.into())
}

#[test]
fn a_packet_is_destination_page_and_offset_interrupt_flag_and_data() {
    let address = address_of("a");
    let proxy = Proxy::to(&address);
    let (a, b) = pair_by(&address, proxy.address());
    let (exporter, importer) = (a.daemon.node(), b.daemon.node());
    let export = export(&exporter, "x", 4 * PAGE as usize);
    let import = importer.import("x").node("a").rights(Rights::WRITE | Rights::READ);
    let import = import.timeout(PATIENCE.unwrap()).open().unwrap();
    let heard = Heard { import, proxy };
    let second_page = PAGE as usize;

    // Deliberate update: the data as they are, wherever they go, and no interrupt.
    let (sent, data) =
        heard.packet_of(|import| import.send(second_page + 905, b"seven b").unwrap());
    assert_eq!(
        (sent.kind, sent.flags, destination(&sent)),
        (Kind::Write, Flags::empty(), (1, 905))
    );
    assert_eq!((sent.len, data.as_slice()), (7, &b"seven b"[..]));
    let slot = (sent.slot, sent.generation);

    // With the sender's interrupt flag, and over a page's end.
    let message = *b"0123456789abcdef";
    let (sent, data) =
        heard.packet_of(|import| import.send_with_notify(second_page - 6, &message).unwrap());
    assert_eq!(
        (sent.kind, sent.flags, destination(&sent)),
        (Kind::Write, Flags::NOTIFY, (0, 4090))
    );
    assert_eq!(sent.value, u64::from_ne_bytes(*b"89abcdef"));
    assert_eq!(data, message);
    assert_eq!((sent.slot, sent.generation), slot, "one import");

    // Words, which have their data in the header.
    for (signal, flags) in [(false, Flags::empty()), (true, Flags::NOTIFY)] {
        let (sent, data) = heard.packet_of(|import| {
            let flag = import.flag32(2 * second_page + 8).unwrap();
            if signal { flag.signal(77).unwrap() } else { flag.store(77).unwrap() }
        });
        assert_eq!((sent.kind, sent.flags, destination(&sent)), (Kind::Word, flags, (2, 8)));
        assert_eq!((sent.len, sent.value, data.len()), (4, 77, 0));
    }

    // A notification alone.
    let (sent, data) = heard.packet_of(|import| import.send_notification(16, 24, 5).unwrap());
    assert_eq!((sent.kind, destination(&sent), sent.len), (Kind::Notify, (0, 16), 24));
    assert_eq!((sent.value, data.len()), (5, 0));

    // Automatic update: a packet ends with its page (H8), and has an interrupt flag of its own (H14).
    for (combining, notify) in
        [(Combining::ON, Flags::empty()), (Combining::ON.notifying(), Flags::NOTIFY)]
    {
        let sent = heard.packets_of(|import| {
            let writer = import.auto_update(combining).unwrap();
            for (i, bytes) in message.chunks(4).enumerate() {
                writer.store(3 * second_page - 8 + 4 * i, bytes).unwrap();
            }
            writer.fence().unwrap();
        });
        // The writer has fenced, too.
        let [(first, begin), (second, end), (fence, _)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(fence.kind, Kind::Fence);
        for (packet, at) in [(first, (2, PAGE - 8)), (second, (3, 0))] {
            assert_eq!((packet.kind, packet.flags), (Kind::Write, Flags::UPDATE | notify));
            assert_eq!(destination(packet), at);
        }
        assert_eq!((begin.as_slice(), end.as_slice()), message.split_at(8));
    }

    // What was decoded is what the exporter has.
    let mut found = [0; 16];
    export.read(second_page - 6, &mut found).unwrap();
    assert_eq!(found, message);
    export.read(3 * second_page - 8, &mut found).unwrap();
    assert_eq!(found, message);
    let flag = export.flag32(2 * second_page + 8).unwrap();
    assert_eq!(flag.load().unwrap(), 77);
    drop(heard);
    until("the link has ended", || export.importers().is_empty());
}
