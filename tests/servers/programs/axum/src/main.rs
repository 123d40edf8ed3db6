//! The service by axum, on tokio's threads: `axum_server PORT`. Its calls are reqwest's. See service.py.
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{header::CONTENT_TYPE, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{json, Value};

const PAUSE: Duration = Duration::from_millis(2);
const WORD: &str = "token ";

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

    async fn calls(&self, number: &str) {
        self.call(number, 0).await;
        tokio::join!(self.call(number, 1), self.call(number, 2));
    }

    fn report_first_token(&self, number: &str, began: Instant) {
        let line = format!("{{\"number\": {number}, \"ttft_s\": {:.9}}}\n", began.elapsed().as_secs_f64());
        (&self.truth).write_all(line.as_bytes()).unwrap();
    }
}

fn body(number: &str, kind: &str, choices: Value) -> Value {
    json!({"id": format!("chatcmpl-{number}"), "object": kind, "created": 1, "model": "tiny", "choices": choices})
}

fn event(number: &str, delta: Value, finish: Option<&str>) -> String {
    let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    format!("data: {}\n\n", body(number, "chat.completion.chunk", choices))
}

fn usage(tokens: u64) -> Value {
    json!({"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens})
}

async fn chat(State(service): State<Arc<Service>>, headers: HeaderMap, Json(asked): Json<Value>) -> Response {
    let began = Instant::now();
    let number = headers["x-request-id"].to_str().unwrap().to_owned();
    let tokens = asked["max_tokens"].as_u64().unwrap();
    service.calls(&number).await;
    if asked["stream"] != json!(true) {
        let message = json!({"role": "assistant", "content": WORD.repeat(tokens as usize)});
        let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
        let mut answer = body(&number, "chat.completion", choices);
        answer["usage"] = usage(tokens);
        return Json(answer).into_response();
    }
    let with_usage = asked["stream_options"]["include_usage"] == json!(true);
    let events = async_stream::stream! {
        yield Ok::<_, Infallible>(event(&number, json!({"role": "assistant", "content": ""}), None));
        service.report_first_token(&number, began);
        yield Ok(event(&number, json!({"content": WORD}), None));
        service.call(&number, 3).await;
        for _ in 1..tokens {
            tokio::time::sleep(PAUSE).await;
            yield Ok(event(&number, json!({"content": WORD}), None));
        }
        let mut end = event(&number, json!({}), Some("stop"));
        if with_usage {
            let mut chunk = body(&number, "chat.completion.chunk", json!([]));
            chunk["usage"] = usage(tokens);
            end += &format!("data: {chunk}\n\n");
        }
        yield Ok(end + "data: [DONE]\n\n");
    };
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

async fn item(State(service): State<Arc<Service>>, Path(number): Path<String>) -> Json<Value> {
    service.calls(&number).await;
    Json(json!({"number": number}))
}

async fn fail(State(service): State<Arc<Service>>, Path(number): Path<String>) -> (StatusCode, Json<Value>) {
    service.call(&number, 0).await;
    (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({"error": "as asked"})))
}

async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

#[tokio::main]
async fn main() {
    let truth = std::env::var("SERVER_TRUTH").unwrap();
    let service = Arc::new(Service {
        client: reqwest::Client::builder().no_proxy().build().unwrap(),
        upstream: std::env::var("SERVER_UPSTREAM").unwrap(),
        truth: OpenOptions::new().append(true).create(true).open(truth).unwrap(),
    });
    let app = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/items/{number}", get(item))
        .route("/fail/{number}", get(fail))
        .route("/health", get(health))
        .with_state(service);
    let address = format!("127.0.0.1:{}", std::env::args().nth(1).unwrap());
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
