//! HTTP/1.1 on Tokio's threads: a line with its port. A request /job/N makes its CUDA calls, between which it waits.

use std::ffi::{c_char, c_int, c_void, CString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const CALLS: usize = 3;
const PAUSE: Duration = Duration::from_millis(2);
const RTLD_NOW: c_int = 2;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[derive(Clone, Copy)]
struct Cuda {
    allocate: extern "C" fn(*mut *mut c_void, usize) -> c_int,
    release: extern "C" fn(*mut c_void) -> c_int,
}

impl Cuda {
    fn load() -> Cuda {
        let path = CString::new(std::env::var("JOBS_CUDART").unwrap()).unwrap();
        unsafe {
            let library = dlopen(path.as_ptr(), RTLD_NOW);
            assert!(!library.is_null());
            Cuda {
                allocate: std::mem::transmute(dlsym(library, c"cudaMalloc".as_ptr())),
                release: std::mem::transmute(dlsym(library, c"cudaFree".as_ptr())),
            }
        }
    }

    fn call(&self, number: usize) {
        let mut pointer = std::ptr::null_mut();
        assert_eq!((self.allocate)(&mut pointer, number), 0);
        assert_eq!((self.release)(pointer), 0);
    }
}

/// Answers GET requests until the client has no more.
async fn serve(mut stream: TcpStream, cuda: Cuda, mut truth: File) -> std::io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    let mut number = 0;
    while let Some(line) = lines.next_line().await? {
        if let Some(target) = line.strip_prefix("GET /job/") {
            number = target.split(' ').next().unwrap().parse().unwrap();
        } else if line.is_empty() {
            for _ in 0..CALLS {
                cuda.call(number);
                tokio::time::sleep(PAUSE).await;
            }
            let line = format!("{{\"number\": {number}, \"calls\": {CALLS}}}\n");
            truth.write_all(line.as_bytes())?; // in one piece: other threads write, too
            let body = number.to_string();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            writer.write_all(answer.as_bytes()).await?;
        }
    }
    Ok(())
}

async fn listen() -> std::io::Result<()> {
    let cuda = Cuda::load();
    let truth = OpenOptions::new().append(true).create(true).open(std::env::var("JOBS_TRUTH").unwrap())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream, cuda, truth.try_clone()?));
    }
}

fn main() -> std::io::Result<()> {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    threads.block_on(listen())
}
