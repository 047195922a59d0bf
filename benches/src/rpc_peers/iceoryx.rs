//! iceoryx2 request-response: shared memory, the payload loaned and written in place, both sides polling
//! without a pause between looks, which is the fastest way to use it.

use super::{Caller, Procedure, Result, say_ready, take_result, wait_for_end};
use iceoryx2::node::Node;
use iceoryx2::port::client::Client as Port;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest argument that is loaned without growing.
const LARGEST: usize = 1 << 20;

type Service = PortFactory<ipc::Service, [u8], Header, [u8], ()>;

/// Which procedure is called.
#[derive(Clone, Copy, Debug, Default, ZeroCopySend)]
#[type_name("Header")]
#[repr(C)]
pub(super) struct Header {
    procedure: u32,
}

/// What iceoryx2 keeps in files lies beside the address, and its name is the address.
fn open(address: &Path) -> Result<(Node<ipc::Service>, Service)> {
    let mut config = Config::default();
    let directory = address.parent().ok_or("the address needs a directory")?;
    let directory = directory.as_os_str().as_encoded_bytes();
    config.global.set_root_path(&Path_::new(directory)?);
    let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
    let name = address.to_string_lossy().into_owned();
    let service = node
        .service_builder(&name.as_str().try_into()?)
        .request_response::<[u8], [u8]>()
        .request_user_header::<Header>()
        .open_or_create()?;
    Ok((node, service))
}

use iceoryx2::prelude::Path as Path_;

pub(super) fn serve(address: &Path) -> Result<()> {
    let (_node, service) = open(address)?;
    let server = service.server_builder().initial_max_slice_len(LARGEST).create()?;
    let leave = Arc::new(AtomicBool::new(false));
    let told = leave.clone();
    // Left in order: it would leave files behind otherwise.
    std::thread::spawn(move || {
        wait_for_end();
        told.store(true, Ordering::Relaxed);
    });
    say_ready()?;
    while !leave.load(Ordering::Relaxed) {
        let Some(request) = server.receive()? else {
            std::hint::spin_loop();
            continue;
        };
        let response = request.loan_slice_uninit(request.payload().len())?;
        let mut response = response.write_from_slice(request.payload());
        Procedure::handle(request.user_header().procedure, response.payload_mut());
        response.send()?;
    }
    Ok(())
}

pub(super) struct Client {
    port: Port<ipc::Service, [u8], Header, [u8], ()>,
    _service: Service,
    _node: Node<ipc::Service>,
}

impl Client {
    pub(super) fn connect(address: &Path) -> Result<Client> {
        let (node, service) = open(address)?;
        let port = service.client_builder().initial_max_slice_len(LARGEST).create()?;
        Ok(Client { port, _service: service, _node: node })
    }
}

impl Caller for Client {
    fn call(&mut self, procedure: Procedure, data: &mut [u8]) -> Result<()> {
        let mut request = self.port.loan_slice_uninit(data.len())?;
        request.user_header_mut().procedure = procedure as u32;
        let pending = request.write_from_slice(data).send()?;
        loop {
            if let Some(response) = pending.receive()? {
                return take_result(response.payload(), data);
            }
            std::hint::spin_loop();
        }
    }
}
