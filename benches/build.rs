//! The gRPC stubs of `src/rpc_peers/tonic.rs`, described here rather than in a `.proto` file: no
//! protocol compiler is needed.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let call = Method::builder()
        .name("call")
        .route_name("Call")
        .input_type("super::super::Payload")
        .output_type("super::super::Payload")
        .codec_path("::tonic_prost::ProstCodec")
        .build();
    let service = Service::builder().name("Measured").package("measured").method(call).build();
    Builder::new().compile(&[service]);
}
