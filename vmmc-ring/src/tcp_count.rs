//! How many bytes a TCP connection has carried, by the kernel's own count.
//!
//! The caller reads `TCP_INFO` (a system call that each library makes in its own way) into
//! [`TcpInfo`]; here is what the numbers mean.

/// The fields of the kernel's `struct tcp_info` that count bytes (linux/tcp.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpInfo {
    /// State of the connection ([`ESTABLISHED`], ...).
    pub state: u8,
    rest: [u8; 7],
    words: [u32; 24],
    pacing: [u64; 2],
    /// Bytes that the other end has acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order, the FIN counted as one.
    pub bytes_received: u64,
    segs: [u32; 2],
    /// Bytes given to the connection that were not sent yet.
    pub notsent_bytes: u32,
    /// Shortest round trip that was seen, in microseconds.
    pub min_rtt: u32,
    data_segs: [u32; 2],
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    /// Data bytes sent, those sent again included.
    pub bytes_sent: u64,
    /// Data bytes sent again.
    pub bytes_retrans: u64,
}

/// Offset of [`TcpInfo::bytes_acked`].
pub const BYTES_ACKED_AT: usize = 120;
/// Offset of [`TcpInfo::bytes_received`].
pub const BYTES_RECEIVED_AT: usize = 128;
/// Offset of [`TcpInfo::notsent_bytes`].
pub const NOTSENT_AT: usize = 144;
/// Offset of [`TcpInfo::bytes_sent`].
pub const BYTES_SENT_AT: usize = 200;
/// Offset of [`TcpInfo::bytes_retrans`].
pub const BYTES_RETRANS_AT: usize = 208;

const _: () = {
    assert!(std::mem::offset_of!(TcpInfo, bytes_acked) == BYTES_ACKED_AT);
    assert!(std::mem::offset_of!(TcpInfo, bytes_received) == BYTES_RECEIVED_AT);
    assert!(std::mem::offset_of!(TcpInfo, notsent_bytes) == NOTSENT_AT);
    assert!(std::mem::offset_of!(TcpInfo, bytes_sent) == BYTES_SENT_AT);
    assert!(std::mem::offset_of!(TcpInfo, bytes_retrans) == BYTES_RETRANS_AT);
};

/// `TCP_ESTABLISHED`.
pub const ESTABLISHED: u8 = 1;
/// `TCP_FIN_WAIT1`.
pub const FIN_WAIT_1: u8 = 4;
/// `TCP_FIN_WAIT2`.
pub const FIN_WAIT_2: u8 = 5;
/// `TCP_CLOSE_WAIT`.
pub const CLOSE_WAIT: u8 = 8;
/// `TCP_LAST_ACK`.
pub const LAST_ACK: u8 = 9;
/// `TCP_CLOSING`.
pub const CLOSING: u8 = 11;

/// Bytes that a socket surely takes without waiting: half of what its buffer (`SO_SNDBUF`) has left behind `queued` bytes,
/// since the kernel counts its own overhead, and says twice what it was told.
#[must_use]
pub fn send_room(buffer: usize, queued: u64) -> u64 {
    (buffer as u64 / 2).saturating_sub(queued) / 2
}

impl TcpInfo {
    /// The counts in the bytes that the kernel gave.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; size_of::<TcpInfo>()]) -> TcpInfo {
        let word = |at: usize| {
            let eight = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
            u64::from_ne_bytes(eight.unwrap_or_default())
        };
        let half = |at: usize| {
            let four = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
            u32::from_ne_bytes(four.unwrap_or_default())
        };
        TcpInfo {
            state: bytes.first().copied().unwrap_or(0),
            bytes_acked: word(BYTES_ACKED_AT),
            bytes_received: word(BYTES_RECEIVED_AT),
            notsent_bytes: half(NOTSENT_AT),
            bytes_sent: word(BYTES_SENT_AT),
            bytes_retrans: word(BYTES_RETRANS_AT),
            ..TcpInfo::default()
        }
    }

    /// Bytes that were given to the connection for sending; `None` in a state in which the FIN
    /// blurs the count.
    #[must_use]
    pub fn given(&self) -> Option<u64> {
        if self.state != ESTABLISHED && self.state != CLOSE_WAIT {
            return None;
        }
        let sent = self.bytes_sent.checked_sub(self.bytes_retrans)?;
        sent.checked_add(self.notsent_bytes.into())
    }

    /// Bytes that were taken out of it, when `unread` of what it received are in the queue.
    #[must_use]
    pub fn taken(&self, unread: u64) -> Option<u64> {
        let open = [ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2].contains(&self.state);
        self.bytes_received.checked_sub(unread)?.checked_sub(u64::from(!open))
    }
}
