//! Cap'n Proto RPC over a Unix socket.
//!
//! The stubs are kept as generated, so that no schema compiler is needed to build this:
//! `capnp compile -orust measured.capnp` with capnpc 0.27.

use super::{Caller, Procedure, Result, WRITTEN, leave_at_end, runtime, say_ready, take_result};
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty::VatNetwork};
use futures::io::BufReader;
use measured_capnp::measured;
use std::path::Path;
use std::rc::Rc;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::task::{LocalSet, spawn_local};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

#[rustfmt::skip]
#[allow(clippy::all, clippy::unimplemented, clippy::undocumented_unsafe_blocks)]
#[allow(clippy::multiple_unsafe_ops_per_block)]
#[allow(unused, unreachable_pub, missing_docs)] // generated
mod measured_capnp;

struct Handler;

impl measured::Server for Handler {
    async fn null(
        self: Rc<Self>,
        _: measured::NullParams,
        _: measured::NullResults,
    ) -> std::result::Result<(), ::capnp::Error> {
        Ok(())
    }

    async fn inout(
        self: Rc<Self>,
        params: measured::InoutParams,
        mut results: measured::InoutResults,
    ) -> std::result::Result<(), ::capnp::Error> {
        let params = params.get()?;
        let data = params.get_data()?;
        if params.get_procedure() == Procedure::Write as u32 {
            results.get().init_data(data.len() as u32).fill(WRITTEN);
        } else {
            results.get().set_data(data);
        }
        Ok(())
    }
}

/// A connection, spoken to by a task of its own.
fn system(stream: UnixStream, side: Side, handler: Option<measured::Client>) -> RpcSystem<Side> {
    let (read, write) = stream.into_split();
    let (read, write) = (BufReader::new(read.compat()), write.compat_write());
    let network = VatNetwork::new(read, write, side, Default::default());
    RpcSystem::new(Box::new(network), handler.map(|handler| handler.client))
}

pub(super) fn serve(address: &Path) -> Result<()> {
    let local = LocalSet::new();
    local.block_on(&runtime()?, async {
        let listener = UnixListener::bind(address)?;
        leave_at_end();
        say_ready()?;
        loop {
            let (stream, _) = listener.accept().await?;
            let handler: measured::Client = capnp_rpc::new_client(Handler);
            spawn_local(system(stream, Side::Server, Some(handler)));
        }
    })
}

pub(super) struct Client {
    local: LocalSet,
    runtime: Runtime,
    inner: measured::Client,
}

impl Client {
    pub(super) fn connect(address: &Path) -> Result<Client> {
        let (local, runtime) = (LocalSet::new(), runtime()?);
        let inner = local.block_on(&runtime, async {
            let mut system = system(UnixStream::connect(address).await?, Side::Client, None);
            let inner: measured::Client = system.bootstrap(Side::Server);
            spawn_local(system);
            Result::Ok(inner)
        })?;
        Ok(Client { local, runtime, inner })
    }
}

impl Caller for Client {
    fn call(&mut self, procedure: Procedure, data: &mut [u8]) -> Result<()> {
        let inner = &self.inner;
        self.local.block_on(&self.runtime, async {
            if procedure == Procedure::Null {
                inner.null_request().send().promise.await?;
                return Ok(());
            }
            let mut request = inner.inout_request();
            let mut params = request.get();
            params.set_procedure(procedure as u32);
            params.set_data(data);
            let reply = request.send().promise.await?;
            take_result(reply.get()?.get_data()?, data)
        })
    }
}
