//! HTTPS by axum-server, which has rustls in it: `rustls_server PEM` prints its port, and ends when its stdin does.
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;

use axum::{routing::get, Router};
use axum_server::tls_rustls::RustlsConfig;

#[tokio::main]
async fn main() {
    let pem = PathBuf::from(std::env::args().nth(1).expect("rustls_server PEM"));
    let config = RustlsConfig::from_pem_file(&pem, &pem).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        std::process::exit(0);
    });
    let service = Router::new().route("/", get(|| async { "seen" })).into_make_service();
    axum_server::from_tcp_rustls(listener, config).unwrap().serve(service).await.unwrap();
}
