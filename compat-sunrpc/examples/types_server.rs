//! A Sun RPC server in Rust: `tests/c/types.x`, compiled by rpc-idl, served over TCP, UDP and rings.
//! Prints its ports; ends when a client calls QUIT.
//!
//! ```text
//! cargo run -p compat-sunrpc --example types_server
//! ```

use rpc_idl_tests::types::*;
use std::error::Error;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use vrpc::Server;
use vrpc::msg::Credential;
use vrpc::server::Context;
use vrpc::xdr::rpc::Failed;

struct Types {
    ticks: Mutex<i32>,
    leave: Sender<()>,
}

macro_rules! echo {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        fn $name(&self, _: &Context, arg: $type) -> Result<$type, Failed> {
            Ok(arg)
        }
    )*};
}

impl TypesV<Context> for Types {
    echo!(
        echo_int: i32, echo_hyper: i64, echo_double: f64, echo_bool: bool, echo_colour: Colour,
        echo_run: Run, echo_scalars: Scalars, echo_list: List, echo_choice: Choice,
        echo_everything: Everything, echo_bulk: Bulk, echo_numbers: Numbers, echo_name: Name,
    );

    fn nothing(&self, _: &Context) -> Result<(), Failed> {
        Ok(())
    }

    fn count(&self, _: &Context, arg: Bulk) -> Result<i32, Failed> {
        i32::try_from(arg.len()).map_err(|_| Failed::new("more than can be counted"))
    }

    fn make(&self, _: &Context, arg: i32) -> Result<Bulk, Failed> {
        Ok((0..arg).map(|at| at.wrapping_mul(31) as u8).collect())
    }

    fn sleep(&self, _: &Context, arg: i32) -> Result<i32, Failed> {
        std::thread::sleep(Duration::from_millis(arg.unsigned_abs().into()));
        Ok(arg)
    }

    fn who(&self, context: &Context) -> Result<i32, Failed> {
        let Credential::Sys(sys) = &context.credential else { return Ok(-1) };
        let groups = sys.gids.iter().zip(3..).map(|(gid, at)| gid * at).sum::<u32>();
        Ok((sys.uid + 1000 * sys.gid + sys.machine.len() as u32 + groups).cast_signed())
    }

    fn refuse(&self, _: &Context, arg: i32) -> Result<i32, Failed> {
        if arg == 1 { Err(Failed::new("as asked")) } else { Ok(arg) }
    }

    fn pid(&self, _: &Context) -> Result<i32, Failed> {
        Ok(std::process::id().cast_signed())
    }

    fn quit(&self, _: &Context) -> Result<(), Failed> {
        let _ = self.leave.send(());
        Ok(())
    }

    fn tick(&self, _: &Context) -> Result<(), Failed> {
        *self.ticks.lock().unwrap_or_else(|it| it.into_inner()) += 1;
        Ok(())
    }

    fn ticks(&self, _: &Context) -> Result<i32, Failed> {
        Ok(*self.ticks.lock().unwrap_or_else(|it| it.into_inner()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (leave, told): (Sender<()>, Receiver<()>) = channel();
    let server = Server::builder()
        .program(TypesVProgram(Types { ticks: Mutex::new(0), leave }))
        .tcp("127.0.0.1:0")
        .udp("127.0.0.1:0")
        .start()?;
    let port = |address: Option<std::net::SocketAddr>| address.map_or(0, |it| it.port());
    println!("{} {}", port(server.tcp_address()), port(server.udp_address()));
    told.recv()?;
    server.stop();
    Ok(())
}
