//! Where other nodes come in: the address at which this one listens.
//!
//! A successor takes over while its predecessor listens there ([`crate::handover`]). The predecessor stops as soon as it hears that
//! everything is taken, before it does or waits for anything else; until then it goes on, should the successor fail. So the
//! successor finds the address in use when it first tries, which is before it takes anything, and has it a moment later. Whoever holds the address
//! then, a predecessor that does not know of this among them, keeps the successor from nothing else: it serves its clients, and
//! tries again until it can listen.

use super::cluster::Cluster;
use super::{StartError, lock};
use rustix::net::Shutdown;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long an address may be another's before people are told.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts: a part of the time that has gone by, from here
const SOON: Duration = Duration::from_millis(1);
/// to here.
const LATE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Entrance {
    address: SocketAddr,
    place: Mutex<Place>,
}

#[derive(Debug)]
enum Place {
    /// Another's still.
    Taken,
    Ours(Arc<TcpListener>),
    /// A successor's.
    Left,
}

impl Entrance {
    /// Listens. That the address is in use is no error for a successor, who has it later.
    ///
    /// # Errors
    /// [`StartError::Listen`].
    pub fn new(cluster: &Cluster, successor: bool) -> Result<Entrance, StartError> {
        let address = cluster.listen;
        let place = match TcpListener::bind(address) {
            Ok(listener) => Place::Ours(Arc::new(listener)),
            Err(error) if successor && error.kind() == ErrorKind::AddrInUse => Place::Taken,
            Err(error) => return Err(StartError::Listen { address, error }),
        };
        Ok(Entrance { address, place: Mutex::new(place) })
    }

    /// What listens, as soon as something can; `None` once it is left.
    pub(super) fn listener(&self) -> Option<Arc<TcpListener>> {
        let since = Instant::now();
        let mut told = false;
        loop {
            let error = match self.attempt()? {
                Ok(listener) => {
                    if told {
                        tracing::info!(address = %self.address, "listens for other nodes now");
                    }
                    return Some(listener);
                }
                Err(error) => error,
            };
            if !told && since.elapsed() >= PATIENCE {
                told = true;
                let address = self.address;
                tracing::error!(%address, %error, "cannot listen for other nodes, which reach nothing here; is the address another program's? Tried again until it can be had");
            }
            std::thread::sleep((since.elapsed() / 8).clamp(SOON, LATE));
        }
    }

    fn attempt(&self) -> Option<std::io::Result<Arc<TcpListener>>> {
        let mut place = lock(&self.place);
        match &*place {
            Place::Left => return None,
            Place::Ours(listener) => return Some(Ok(listener.clone())),
            Place::Taken => {}
        }
        let listener = TcpListener::bind(self.address).map(Arc::new);
        if let Ok(listener) = &listener {
            *place = Place::Ours(listener.clone());
        }
        Some(listener)
    }

    /// Listens no more, from now on: the address is the successor's. Whoever accepts returns.
    pub(super) fn leave(&self) {
        let left = std::mem::replace(&mut *lock(&self.place), Place::Left);
        if let Place::Ours(listener) = left
            && let Err(errno) = rustix::net::shutdown(&*listener, Shutdown::Both)
        {
            tracing::warn!(%errno, address = %self.address, "cannot stop listening to other nodes");
        }
    }

    /// Whether the address is a successor's.
    pub(super) fn is_left(&self) -> bool {
        matches!(*lock(&self.place), Place::Left)
    }
}
