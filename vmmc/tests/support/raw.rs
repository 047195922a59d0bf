//! A client that speaks the bare control protocol and maps what it is given by hand: nothing of
//! the library's politeness is in its way.

use crate::common::PATIENCE;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;
use vmmc::Rights;
use vmmc::control::connect::Incoming;
use vmmc::control::message::{Event, Hello, NO_CPU, Refusal, Request, Role, Welcome};
use vmmc::control::{Connection, codec};
use vmmc::id::{ExportId, Grant, LinkId, Name, RequestId};
use vmmc::layout::{self, link, page};
use vmmc::mem::View;
use vmmc::sys::doorbell::Doorbell;
use vmmc::sys::mmap::{Access, GuardedMapping};
use vmmc::sys::packet::Fds;
use vmmc::sys::{Fd, memfd};
use vmmc::word::Word;

/// A view of a mapping that is never unmapped.
pub fn forever(mapping: GuardedMapping) -> View<'static> {
    let (start, len) = (mapping.as_ptr(), mapping.len());
    std::mem::forget(mapping);
    // SAFETY: mapped until the process ends.
    unsafe { View::from_raw(start, len) }
}

/// A sealed memory file, mapped.
pub fn sealed(len: usize) -> (View<'static>, Fd) {
    let file = memfd::create("vmmc-test", len as u64).expect("memory");
    memfd::seal(&file).expect("seals");
    (forever(GuardedMapping::new(&file, len, Access::ReadWrite).expect("maps")), file)
}

pub fn set32(view: View<'_>, at: usize, value: u32) {
    view.word32(at).expect("inside").store(value, vmmc::sync::Ordering::SeqCst);
}

pub fn get32(view: View<'_>, at: usize) -> u32 {
    view.word32(at).expect("inside").load(vmmc::sync::Ordering::SeqCst)
}

pub fn set64(view: View<'_>, at: usize, value: u64) {
    view.word64(at).expect("inside").store(value, vmmc::sync::Ordering::SeqCst);
}

/// A process page as the layout wants it, sealed with one writer.
pub fn process_page() -> (View<'static>, Fd) {
    let file = memfd::create("vmmc-process", page::LEN as u64).expect("memory");
    let view = forever(GuardedMapping::new(&file, page::LEN, Access::ReadWrite).expect("maps"));
    memfd::seal_single_writer(&file).expect("seals");
    set32(view, layout::HEAD_VERSION, layout::VERSION);
    set32(view, layout::HEAD_BYTES, page::LEN as u32);
    set64(view, layout::HEAD_MAGIC, page::MAGIC);
    (view, file)
}

/// A link segment as an importer makes it.
pub fn link_segment() -> (View<'static>, Fd) {
    let (view, file) = sealed(link::LEN);
    set32(view, link::ACCEPT, 1);
    set32(view, layout::HEAD_VERSION, layout::VERSION);
    set32(view, layout::HEAD_BYTES, link::LEN as u32);
    set64(view, layout::HEAD_MAGIC, link::MAGIC);
    (view, file)
}

/// A connected client.
pub struct Raw {
    pub connection: Connection,
    pub welcome: Welcome,
    pub page: View<'static>,
    pub bell: Doorbell,
    next: u64,
}

/// An import by hand.
pub struct RawImport {
    pub link: LinkId,
    pub export: ExportId,
    /// The whole buffer, mapped with all that the descriptor allows.
    pub memory: View<'static>,
    pub memory_file: Fd,
    pub segment: View<'static>,
    /// The exporter's page and doorbell.
    pub page: Option<Fd>,
    pub doorbell: Option<Fd>,
}

fn patience() -> Instant {
    Instant::now() + PATIENCE.unwrap_or_default()
}

/// A connection past the handshake and no further.
pub fn connect(socket: &Path) -> Connection {
    Connection::open_existing(socket).expect("connects")
}

impl Raw {
    pub fn connect(socket: &Path) -> Raw {
        let (page, page_file) = process_page();
        let bell = Doorbell::new().expect("a doorbell");
        let connection = connect(socket);
        let hello = Hello { role: Role::Process, program: "hostile".into(), resume: None };
        let fds = [page_file.as_fd(), bell.fd().as_fd()];
        let welcome = connection.hello(hello, &fds).expect("welcome");
        Raw { connection, welcome, page, bell, next: 1 }
    }

    pub fn request(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    pub fn tell(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        self.connection.send(request, fds).expect("the daemon listens");
    }

    /// Bytes as they are.
    pub fn tell_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        vmmc::sys::packet::send(&self.connection, bytes, fds, rustix::net::SendFlags::empty())
    }

    /// The next message for which `wanted` finds something; others are passed over.
    pub fn hear<T>(&self, mut wanted: impl FnMut(&Event, &mut Fds) -> Option<T>) -> T {
        loop {
            let Incoming { event, mut fds } =
                self.connection.receive_until(patience()).expect("the daemon answers");
            if let Some(found) = wanted(&event, &mut fds) {
                return found;
            }
        }
    }

    /// Whether the daemon hangs up on us, whatever it says before.
    pub fn hears_the_end(&self) -> bool {
        loop {
            match self.connection.receive_until(patience()) {
                Ok(_) => {}
                Err(vmmc::control::connect::LinkError::Gone) => return true,
                Err(_) => return false,
            }
        }
    }

    pub fn try_export(
        &mut self,
        name: &str,
        len: u64,
        grants: Vec<Grant>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<ExportId, Refusal> {
        let request = self.request();
        let name = Name::from(name);
        let message =
            Request::Export { request, name, len, grants, token: None, restore: None, cpu: NO_CPU };
        self.tell(&message, fds);
        self.hear(|event, _| match event {
            Event::Exported { request: of, export, .. } if *of == request => Some(Ok(*export)),
            Event::Refused { request: of, refusal } if *of == request => Some(Err(refusal.clone())),
            _ => None,
        })
    }

    /// Imports with a link segment of the caller's making.
    pub fn try_import_with(
        &mut self,
        name: &str,
        rights: Rights,
        segment: View<'static>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<RawImport, Refusal> {
        self.try_import_of(None, name.into(), rights, segment, fds)
    }

    /// The same of a process, if one is named.
    fn try_import_of(
        &mut self,
        process: Option<u32>,
        name: Name,
        rights: Rights,
        segment: View<'static>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<RawImport, Refusal> {
        let request = self.request();
        let message = Request::Import {
            request,
            process,
            name,
            rights,
            token: None,
            timeout_ms: 120_000,
            restore: None,
            known_to: None,
            cpu: NO_CPU,
        };
        self.tell(&message, fds);
        self.hear(|event, fds| match event {
            Event::Imported { request: of, link, export, len, rights, introduces, .. }
                if *of == request =>
            {
                let file = fds.take().expect("the memory");
                let access = match rights.intersects(Rights::WRITE | Rights::BIND) {
                    true => Access::ReadWrite,
                    false => Access::Read,
                };
                let mapping = GuardedMapping::new(&file, *len as usize, access).expect("maps");
                let (page, doorbell) =
                    if *introduces { (fds.take(), fds.take()) } else { (None, None) };
                Some(Ok(RawImport {
                    link: *link,
                    export: *export,
                    memory: forever(mapping),
                    memory_file: file,
                    segment,
                    page,
                    doorbell,
                }))
            }
            Event::Refused { request: of, refusal } if *of == request => Some(Err(refusal.clone())),
            _ => None,
        })
    }

    /// Imports as an honest library would.
    pub fn import(&mut self, name: &str, rights: Rights) -> RawImport {
        self.import_of(None, name.into(), rights)
    }

    /// The same of a process, if one is named.
    pub fn import_of(&mut self, process: Option<u32>, name: Name, rights: Rights) -> RawImport {
        let (segment, file) = link_segment();
        // Asleep: an exporter that has heard of the link rings.
        self.bell.drain();
        set32(self.page, page::ARMED, self.next as u32 | 1 << 31);
        let fds = [file.as_fd()];
        let import = self.try_import_of(process, name, rights, segment, &fds).expect("imports");
        while !self.bell.wait(Some(patience())).expect("polls") {}
        set32(self.page, page::ARMED, 0);
        import
    }
}

/// A request as the daemon would decode it.
pub fn encoded(request: &Request) -> Vec<u8> {
    let mut buffer = [0; vmmc::control::message::MAX_PACKET_LEN];
    codec::encode(request, &mut buffer).expect("fits").to_vec()
}

/// Numbers that look random and are the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
