//! tarpc over a Unix socket, with bincode: its own transport, its recommended format.

use super::{Caller, Procedure, Result, leave_at_end, runtime, say_ready, take_result};
use futures::StreamExt;
use serde_bytes::ByteBuf;
use std::path::Path;
use tarpc::context::Context;
use tarpc::serde_transport::unix;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tokio::runtime::Runtime;

#[tarpc::service]
trait Measured {
    async fn null();
    // ByteBuf: as one run of bytes, and not element by element.
    async fn inout(procedure: u32, data: ByteBuf) -> ByteBuf;
}

#[derive(Clone)]
struct Handler;

impl Measured for Handler {
    async fn null(self, _: Context) {}

    async fn inout(self, _: Context, procedure: u32, mut data: ByteBuf) -> ByteBuf {
        Procedure::handle(procedure, &mut data);
        data
    }
}

pub(super) fn serve(address: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let mut incoming = unix::listen(address, Bincode::default).await?;
        incoming.config_mut().max_frame_length(64 << 20);
        leave_at_end();
        say_ready()?;
        while let Some(transport) = incoming.next().await {
            let calls = BaseChannel::with_defaults(transport?).execute(Handler.serve());
            calls.for_each(|call| async { drop(tokio::spawn(call)) }).await;
        }
        Ok(())
    })
}

pub(super) struct Client {
    runtime: Runtime,
    inner: MeasuredClient,
}

impl Client {
    pub(super) fn connect(address: &Path) -> Result<Client> {
        let runtime = runtime()?;
        let inner = runtime.block_on(async {
            let mut connecting = unix::connect(address, Bincode::default);
            connecting.config_mut().max_frame_length(64 << 20);
            let transport = connecting.await?;
            Result::Ok(MeasuredClient::new(tarpc::client::Config::default(), transport).spawn())
        })?;
        Ok(Client { runtime, inner })
    }
}

impl Caller for Client {
    fn call(&mut self, procedure: Procedure, data: &mut [u8]) -> Result<()> {
        let context = tarpc::context::current();
        if procedure == Procedure::Null {
            return Ok(self.runtime.block_on(self.inner.null(context))?);
        }
        let argument = ByteBuf::from(data.to_vec());
        let call = self.inner.inout(context, procedure as u32, argument);
        take_result(&self.runtime.block_on(call)?, data)
    }
}
