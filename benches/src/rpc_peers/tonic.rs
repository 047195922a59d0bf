//! gRPC as tonic speaks it, over a Unix socket. `build.rs` makes the stubs.

use super::{Caller, Procedure, Result, leave_at_end, runtime, say_ready, take_result};
use ::tonic::transport::{Channel, Endpoint, Server};
use ::tonic::{Request, Response, Status};
use hyper_util::rt::TokioIo;
use std::path::Path;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;

/// Bytes that HTTP/2 lets be under way: more than the longest argument, so that no call waits for it.
const WINDOW: u32 = 8 << 20;

/// The argument, and the result.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Payload {
    #[prost(uint32, tag = "1")]
    procedure: u32,
    #[prost(bytes = "vec", tag = "2")]
    data: Vec<u8>,
}

mod stubs {
    #![allow(clippy::all, unreachable_pub, missing_docs)] // generated
    include!(concat!(env!("OUT_DIR"), "/measured.Measured.rs"));
}

struct Handler;

#[::tonic::async_trait]
impl stubs::measured_server::Measured for Handler {
    async fn call(
        &self,
        request: Request<Payload>,
    ) -> std::result::Result<Response<Payload>, Status> {
        let mut payload = request.into_inner();
        Procedure::handle(payload.procedure, &mut payload.data);
        Ok(Response::new(payload))
    }
}

pub(super) fn serve(address: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let listener = UnixListenerStream::new(UnixListener::bind(address)?);
        leave_at_end();
        say_ready()?;
        let server = Server::builder()
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .serve_with_incoming(stubs::measured_server::MeasuredServer::new(Handler), listener);
        Ok(server.await?)
    })
}

pub(super) struct Client {
    runtime: Runtime,
    inner: stubs::measured_client::MeasuredClient<Channel>,
}

impl Client {
    pub(super) fn connect(address: &Path) -> Result<Client> {
        let runtime = runtime()?;
        let address = address.to_owned();
        let connector = tower::service_fn(move |_| {
            let address = address.clone();
            async move { std::io::Result::Ok(TokioIo::new(UnixStream::connect(address).await?)) }
        });
        // The address is a formality: the connector knows.
        let endpoint = Endpoint::from_static("http://[::]:1")
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let channel = runtime.block_on(endpoint.connect_with_connector(connector))?;
        Ok(Client { runtime, inner: stubs::measured_client::MeasuredClient::new(channel) })
    }
}

impl Caller for Client {
    fn call(&mut self, procedure: Procedure, data: &mut [u8]) -> Result<()> {
        let payload = Payload { procedure: procedure as u32, data: data.to_vec() };
        let result = self.runtime.block_on(self.inner.call(payload))?.into_inner();
        take_result(&result.data, data)
    }
}
