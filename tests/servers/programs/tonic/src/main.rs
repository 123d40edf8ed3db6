//! The service by tonic, on tokio's threads: `tonic_server PORT`. Its calls are reqwest's. See kserve.py.
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::future::{pending, Future};
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tonic::body::Body;
use tonic::codegen::{http, tokio_stream::Stream, tokio_stream::StreamExt, Service as TowerService};
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

const PAUSE: Duration = Duration::from_millis(2);
const WORD: &str = "token ";
const TOKENS: usize = 6;

type Stopping<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

#[derive(Clone, PartialEq, prost::Message)]
struct Contents {
    #[prost(bytes = "vec", repeated, tag = "8")]
    bytes_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Tensor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(message, optional, tag = "5")]
    contents: Option<Contents>,
}

/// A ModelInferRequest or a ModelInferResponse: what is used of them has the same numbers.
#[derive(Clone, PartialEq, prost::Message)]
struct Infer {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(message, repeated, tag = "5")]
    tensors: Vec<Tensor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StreamInferResponse {
    #[prost(message, optional, tag = "2")]
    infer_response: Option<Infer>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

impl Infer {
    fn number(&self) -> &str {
        self.id.trim_start_matches("chatcmpl-")
    }

    fn answer(&self, text: String) -> Infer {
        let contents = Some(Contents { bytes_contents: vec![text.into_bytes()] });
        let tensor = Tensor { name: "text_output".to_owned(), datatype: "BYTES".to_owned(), contents };
        Infer { tensors: vec![tensor], ..self.clone() }
    }

    fn token(&self) -> StreamInferResponse {
        StreamInferResponse { infer_response: Some(self.answer(WORD.to_owned())) }
    }
}

struct Service {
    client: reqwest::Client,
    upstream: String,
    truth: File,
}

impl Service {
    async fn call(&self, number: &str, which: u32) {
        let url = format!("{}/call/{number}/{which}", self.upstream);
        self.client.get(url).send().await.unwrap().bytes().await.unwrap();
    }

    async fn begin(&self, asked: &Infer) -> Result<(), Status> {
        let number = asked.number();
        match asked.model_name.as_str() {
            "failing" => {
                self.call(number, 0).await;
                Err(Status::internal("as asked"))
            }
            "tiny" | "patient" => {
                self.call(number, 0).await;
                tokio::join!(self.call(number, 1), self.call(number, 2));
                Ok(())
            }
            other => Err(Status::not_found(other)),
        }
    }

    fn report_first_token(&self, number: &str, began: Instant) {
        let line = format!("{{\"number\": {number}, \"ttft_s\": {:.9}}}\n", began.elapsed().as_secs_f64());
        (&self.truth).write_all(line.as_bytes()).unwrap();
    }
}

struct ModelInfer(Arc<Service>);

impl UnaryService<Infer> for ModelInfer {
    type Response = Infer;
    type Future = Stopping<Response<Infer>>;

    fn call(&mut self, request: Request<Infer>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let asked = request.into_inner();
            service.begin(&asked).await?;
            if asked.model_name == "patient" {
                pending::<()>().await; // until the call is cancelled, and this dropped
            }
            Ok(Response::new(asked.answer(WORD.repeat(TOKENS))))
        })
    }
}

struct ModelStreamInfer(Arc<Service>);

impl StreamingService<Infer> for ModelStreamInfer {
    type Response = StreamInferResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<StreamInferResponse, Status>> + Send>>;
    type Future = Stopping<Response<Self::ResponseStream>>;

    fn call(&mut self, request: Request<Streaming<Infer>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let began = Instant::now();
            let asked = request.into_inner().next().await.unwrap()?;
            service.begin(&asked).await?;
            let tokens = async_stream::try_stream! {
                service.report_first_token(asked.number(), began);
                yield asked.token();
                if asked.model_name == "patient" {
                    yield asked.token();
                    pending::<()>().await;
                }
                service.call(asked.number(), 3).await;
                for _ in 1..TOKENS {
                    tokio::time::sleep(PAUSE).await;
                    yield asked.token();
                }
            };
            Ok(Response::new(Box::pin(tokens) as Self::ResponseStream))
        })
    }
}

struct ServerLive;

impl UnaryService<Nothing> for ServerLive {
    type Response = Nothing;
    type Future = Stopping<Response<Nothing>>;

    fn call(&mut self, _request: Request<Nothing>) -> Self::Future {
        Box::pin(async { Ok(Response::new(Nothing {})) })
    }
}

/// What tonic-build makes of a `.proto` file.
#[derive(Clone)]
struct GrpcInferenceService(Arc<Service>);

impl NamedService for GrpcInferenceService {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl TowerService<http::Request<Body>> for GrpcInferenceService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
            Ok(match method.as_str() {
                "ModelInfer" => Grpc::new(ProstCodec::default()).unary(ModelInfer(service), request).await,
                "ModelStreamInfer" => {
                    Grpc::new(ProstCodec::default()).streaming(ModelStreamInfer(service), request).await
                }
                "ServerLive" => Grpc::new(ProstCodec::default()).unary(ServerLive, request).await,
                _ => Status::unimplemented("").into_http(),
            })
        })
    }
}

#[tokio::main]
async fn main() {
    let truth = std::env::var("SERVER_TRUTH").unwrap();
    let service = Arc::new(Service {
        client: reqwest::Client::builder().no_proxy().build().unwrap(),
        upstream: std::env::var("SERVER_UPSTREAM").unwrap(),
        truth: OpenOptions::new().append(true).create(true).open(truth).unwrap(),
    });
    let address = format!("127.0.0.1:{}", std::env::args().nth(1).unwrap()).parse().unwrap();
    let server = tonic::transport::Server::builder().add_service(GrpcInferenceService(service));
    server.serve(address).await.unwrap();
}
