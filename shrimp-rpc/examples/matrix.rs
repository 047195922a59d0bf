//! A service that works on matrices in place: `matrix serve`, `matrix try ROWS COLUMNS`.

#[path = "generated/matrix.rs"]
#[allow(missing_docs, dead_code, unreachable_pub)] // a program uses its part of the stubs
#[rustfmt::skip] // it stays as the compiler made it
mod generated;

use generated::{MatrixV1, MatrixV1Client, MatrixV1Service};
use shrimp_rpc::{Binding, BulkMut, Context, Fault, Server};
use std::process::ExitCode;

struct Matrices;

impl MatrixV1 for Matrices {
    fn scale(&self, _: &Context, by: f64, m: &mut BulkMut<'_, f64>) -> Result<(), Fault> {
        // A piece at a time: each is in the client's reach as soon as it is written.
        let mut piece = [0.0; 1024];
        for first in (0..m.len()).step_by(piece.len()) {
            let count = piece.len().min(m.len() - first);
            m.read(first, &mut piece[..count])?;
            for element in &mut piece[..count] {
                *element *= by;
            }
            m.write(first, &piece[..count]).map_err(|_| Fault::new(1, "outside the matrix"))?;
        }
        Ok(())
    }

    fn transpose(&self, _: &Context, rows: u32, m: &mut BulkMut<'_, f64>) -> Result<bool, Fault> {
        let rows = rows as usize;
        if rows == 0 || !m.len().is_multiple_of(rows) {
            return Ok(false);
        }
        let old = m.to_vec().map_err(|_| Fault::new(2, "not a matrix"))?;
        let columns = old.len() / rows;
        let new: Vec<f64> = (0..old.len()).map(|i| old[i % rows * columns + i / rows]).collect();
        m.write(0, &new).map_err(|_| Fault::new(1, "outside the matrix"))?;
        Ok(true)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("matrix: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => {
            // Buffers in which large matrices fit whole.
            let server = Server::builder("matrix").buffer_max(16 << 20);
            server.program(MatrixV1Service(Matrices)).start()?.run();
        }
        ["try", rows, columns] => {
            let (rows, columns): (u32, u32) = (rows.parse()?, columns.parse()?);
            let binding = Binding::builder("matrix", generated::matrix_v1::PROGRAM, 1)
                .buffer_len(16 << 20)
                .connect()?;
            let client = MatrixV1Client::new(binding);
            let mut m: Vec<f64> = (0..rows * columns).map(f64::from).collect();
            client.scale(0.5, &mut m)?;
            let fits = client.transpose(rows, &mut m)?;
            let expected = (0..columns).flat_map(|column| {
                (0..rows).map(move |row| f64::from(row * columns + column) * 0.5)
            });
            let same = fits && m.iter().copied().eq(expected);
            println!("{}", if same { "as expected" } else { "wrong" });
        }
        _ => return Err("usage: matrix serve | matrix try ROWS COLUMNS".into()),
    }
    Ok(())
}
