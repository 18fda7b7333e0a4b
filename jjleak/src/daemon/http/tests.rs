use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use axum::body::Body;
use axum::http::{Method, Request};
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::daemon::config::{Config, ListenAddress};
use crate::daemon::handover::Handover;
use crate::daemon::history::{Entry, History};
use crate::daemon::watch::Watcher;
use crate::daemon::watch::cat::{Cat, cats};
use crate::render::sample;

const TOKEN: &str = "a token that nobody guesses";

/// A daemon with one profile, of a process with a hostile name.
struct Fixture {
    shared: Shared,
    folder: TempDir,
    id: String,
}

impl Fixture {
    fn new(config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (mut history, _) = History::open(folder.path()).unwrap();
        let mut profile = sample::profile();
        profile.process.comm = "<script>\"'&".to_owned();
        let entry = Entry::of(crate::daemon::history::Id::of(&profile), &profile, "a test");
        let id = history.keep(&profile, entry, b"<svg xmlns=\"x\"/>").unwrap().to_string();
        let kept = (history, Handover::open(folder.path()).unwrap().0);
        Self { shared: Shared::new(config, Watcher::new().0, kept, None), folder, id }
    }

    fn guard(&self) -> Guard {
        Guard::of(&self.shared.core().config.http).unwrap()
    }

    /// Response to a request: status, headers and body.
    fn ask(&self, request: Request<Body>) -> (StatusCode, axum::http::HeaderMap, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let service = TowerToHyperService::new(router(self.shared.clone(), self.guard()));
            let response = hyper::service::Service::call(&service, request).await.unwrap();
            let (head, body) = response.into_parts();
            (head.status, head.headers, axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec())
        })
    }

    fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, _, body) = self.ask(request(Method::GET, path, &[]));
        (status, String::from_utf8_lossy(&body).into_owned())
    }
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    headers
        .iter()
        .fold(request, |request, (name, value)| request.header(*name, *value))
        .body(Body::empty())
        .unwrap()
}

#[test]
fn everything_stored_is_served() {
    let fixture = Fixture::new(Config::default());
    let id = &fixture.id;
    let (status, page) = fixture.get("/");
    assert_eq!(status, 200);
    assert!(page.contains(&format!("/profiles/{id}/report.html")), "{page}");
    assert_eq!(fixture.get(&format!("/profiles/{id}/flame.svg")).1, "<svg xmlns=\"x\"/>");
    assert!(fixture.get(&format!("/profiles/{id}/report.html")).1.starts_with("<!DOCTYPE html>"));
    let series = fixture.get(&format!("/profiles/{id}/series")).1;
    assert!(
        series.contains(&format!("/profiles/{id}/flame.svg")) && !series.contains("<script>"),
        "{series}"
    );
    let pid = sample::profile().process.pid;
    for path in [format!("/profiles/{id}/profile.pb.gz"), format!("/debug/pprof/heap?pid={pid}")] {
        let (status, _, bytes) = fixture.ask(request(Method::GET, &path, &[]));
        assert_eq!(status, 200);
        assert_eq!(crate::pprof::read(&bytes).unwrap().profile.live(), sample::profile().live());
    }
    let profiles: Value = serde_json::from_str(&fixture.get("/api/v1/profiles").1).unwrap();
    assert_eq!(profiles["profiles"][0]["id"], **id);
    let others = fixture.get("/api/v1/profiles?series=0000000000001-1").1;
    assert_eq!(others, "{\"profiles\":[]}");
    assert_eq!(fixture.get("/api/v1/profiles?series=x").0, 400);
    let profile: Value = serde_json::from_str(&fixture.get(&format!("/api/v1/profiles/{id}")).1).unwrap();
    assert_eq!(profile["why"], "a test");
    assert!(fixture.get("/metrics").1.contains("jjleak_history_profiles 1\n"));
    assert_eq!(fixture.get("/healthz"), (StatusCode::OK, "ok\n".to_owned()));
    assert_eq!(fixture.get("/api/v1/processes").1, "{\"processes\":[]}");
}

#[test]
fn process_names_are_escaped_and_pages_load_nothing() {
    let fixture = Fixture::new(Config::default());
    let (_, headers, page) = fixture.ask(request(Method::GET, "/", &[]));
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("&lt;script&gt;&quot;'&amp;") && !page.contains("<script"), "{page}");
    assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    assert_eq!(headers["x-content-type-options"], "nosniff");
}

#[test]
fn command_lines_are_shown_only_if_configured() {
    let _cat = Cat::answering(std::process::Command::new("cat").args(["-", "hunter2"]));
    for shows in [false, true] {
        let mut config = cats();
        config.http.show_command_lines = shows;
        let fixture = Fixture::new(config);
        fixture.shared.core().scan();
        for path in ["/", "/api/v1/processes"] {
            assert_eq!(fixture.get(path).1.contains("hunter2"), shows, "{path}");
        }
        assert!(!fixture.get("/metrics").1.contains("hunter2"));
    }
}

#[test]
fn the_openapi_description_matches_the_routes() {
    let fixture = Fixture::new(Config::default());
    let description: Value = serde_json::from_str(&fixture.get("/api/v1/openapi.json").1).unwrap();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{id}", &fixture.id).replace("{pid}", "4000000");
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (status, _, body) = fixture.ask(request(method.clone(), &format!("{path}?pid=1"), &[]));
            assert_ne!(status, 405, "{method} {path}");
            assert!(!String::from_utf8_lossy(&body).contains("no such resource"), "{method} {path}");
        }
    }
    let profile: Value =
        serde_json::from_str(&fixture.get(&format!("/api/v1/profiles/{}", fixture.id)).1).unwrap();
    for key in description["components"]["schemas"]["Profile"]["required"].as_array().unwrap() {
        assert!(!profile[key.as_str().unwrap()].is_null(), "{key}");
    }
}

#[test]
fn unknown_paths_are_not_found_and_none_escapes() {
    let fixture = Fixture::new(Config::default());
    for path in [
        "/profiles/0000000000001-1/flame.svg",
        "/profiles/0000000000001-1/series",
        "/profiles/x/series",
        "/profiles/..%2f..%2findex/profile.pb.gz",
        "/profiles/%2e%2e/profile.pb.gz",
        "/profiles/%00/flame.svg",
        "/api/v1/profiles/x",
        "/debug/pprof/heap?pid=1234567",
        "/index",
        "//etc/passwd",
    ] {
        assert_eq!(fixture.get(path).0, 404, "{path}");
    }
    assert_eq!(fixture.get("/debug/pprof/heap").0, 400);
    assert_eq!(fixture.ask(request(Method::POST, "/api/v1/processes/4000000/profile", &[])).0, 404);
    assert_eq!(fixture.ask(request(Method::DELETE, "/", &[])).0, 405);
}

#[test]
fn with_a_token_only_health_is_public() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let mode = |mode| {
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    let mut config = Config::default();
    config.http.token_file.clone_from(&path);
    mode(0o644);
    assert!(Guard::of(&config.http).unwrap_err().to_string().contains("every user"));
    mode(0o640);
    let fixture = Fixture::new(config);
    assert_eq!(fixture.get("/").0, 401);
    assert_eq!(fixture.get("/healthz").0, 200);
    let with = |value: &str| fixture.ask(request(Method::GET, "/", &[("authorization", value)])).0;
    assert_eq!(with(&format!("Bearer {TOKEN}")), 200);
    for wrong in ["Bearer ", "Bearer a", TOKEN, &format!("Bearer {TOKEN}x"), &format!("Basic {TOKEN}")] {
        assert_eq!(with(wrong), 401, "{wrong}");
    }
}

#[test]
fn cross_site_requests_to_a_local_address_are_refused() {
    let mut config = Config::default();
    config.http.listen = ListenAddress::Tcp("127.0.0.1:7007".parse().unwrap());
    let fixture = Fixture::new(config);
    let get = |host: &str| fixture.ask(request(Method::GET, "/", &[("host", host)])).0;
    assert_eq!(
        (get("localhost:7007"), get("127.0.0.1:7007"), get("[::1]:7007")),
        (StatusCode::OK, StatusCode::OK, StatusCode::OK)
    );
    assert_eq!(get("evil.example:7007"), 403);
    assert_eq!(fixture.get("/").0, 403);
    let post = |origin: &str| {
        let headers = [("host", "localhost:7007"), ("origin", origin)];
        fixture.ask(request(Method::POST, "/api/v1/processes/4000000/profile", &headers)).0
    };
    assert_eq!(
        (post("http://localhost:7007"), post("http://evil.example")),
        (StatusCode::NOT_FOUND, StatusCode::FORBIDDEN)
    );
}

/// Serves on a Unix socket during a test.
async fn served_to(fixture: &Fixture, test: impl AsyncFnOnce(&Path)) {
    let path = fixture.folder.path().join("socket");
    let listener = Listener::open(&ListenAddress::Unix(path.clone())).unwrap().unwrap();
    tokio::select! {
        () = serve(listener, fixture.guard(), fixture.shared.clone()) => panic!("it serves no more"),
        () = test(&path) => {}
    }
}

/// A client that sends a request and reads only the first byte of the response.
fn begin(socket: &Path, path: &str) -> (UnixStream, u8) {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut first = [0];
    stream.read_exact(&mut first).unwrap();
    (stream, first[0])
}

async fn ask_at(socket: &Path, path: &str) -> String {
    let (socket, path) = (socket.to_owned(), path.to_owned());
    let asking = tokio::task::spawn_blocking(move || {
        let (mut stream, first) = begin(&socket, &path);
        let mut answer = vec![first];
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    });
    asking.await.unwrap()
}

#[tokio::test]
async fn a_thousand_connections_are_all_answered() {
    let fixture = Fixture::new(Config::default());
    let path = format!("/profiles/{}/flame.svg", fixture.id);
    served_to(&fixture, async |socket| {
        for _ in 0..20 {
            let asked = (0..50).map(|_| {
                let (socket, path) = (socket.to_owned(), path.clone());
                tokio::spawn(async move { ask_at(&socket, &path).await })
            });
            for answer in asked.collect::<Vec<_>>() {
                assert!(answer.await.unwrap().starts_with("HTTP/1.1 200 "));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_takes_no_memory_and_blocks_no_others() {
    const LARGE: u64 = 1 << 40;
    let fixture = Fixture::new(Config::default());
    let picture = fixture.shared.history().picture(&fixture.id.parse().unwrap()).unwrap();
    // Too large to be read into memory.
    std::fs::OpenOptions::new().write(true).open(&picture).unwrap().set_len(LARGE).unwrap();
    let path = format!("/profiles/{}/flame.svg", fixture.id);
    served_to(&fixture, async |socket| {
        let mut slow = Vec::new();
        for _ in 0..10 {
            let (socket, path) = (socket.to_owned(), path.clone());
            slow.push(tokio::task::spawn_blocking(move || begin(&socket, &path)).await.unwrap());
        }
        assert!(ask_at(socket, "/healthz").await.starts_with("HTTP/1.1 200 "));
        let report = ask_at(socket, &format!("/profiles/{}/report.html", fixture.id)).await;
        assert!(report.trim_end().ends_with("</html>"));
    })
    .await;
}

/// Polls a future once, and drops it, as the server does when a client disconnects.
async fn abandoned(future: impl Future) {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}

/// Keeps others from reading the history until it is dropped.
fn hold_history(fixture: &Fixture) -> std::sync::mpsc::Sender<()> {
    let (hold, end) = std::sync::mpsc::channel::<()>();
    let (tell, is_held) = std::sync::mpsc::channel();
    let shared = fixture.shared.clone();
    std::thread::spawn(move || {
        let _history = shared.history();
        tell.send(()).unwrap();
        let _ = end.recv();
    });
    is_held.recv().unwrap();
    hold
}

#[tokio::test]
async fn a_report_is_the_only_one_until_it_is_rendered_even_if_nobody_waits_for_it() {
    let fixture = Fixture::new(Config::default());
    let served = Served::new(fixture.shared.clone());
    let report =
        || profiles::report(axum::extract::State(served.clone()), axum::extract::Path(fixture.id.clone()));
    let hold = hold_history(&fixture);
    for _ in 0..3 {
        abandoned(report()).await;
    }
    assert_eq!(served.rendering.available_permits(), 0);
    assert_eq!(served.working.available_permits(), MAX_WORKING - 1);
    drop(hold);
    assert_eq!(report().await.status(), 200);
    assert_eq!(served.rendering.available_permits(), 1);
}

#[tokio::test]
async fn requests_are_worked_on_one_after_the_other_even_if_nobody_waits_for_them() {
    let fixture = Fixture::new(Config::default());
    let served = Served::new(fixture.shared.clone());
    let hold = hold_history(&fixture);
    let request =
        || api::profile(axum::extract::State(served.clone()), axum::extract::Path(fixture.id.clone()));
    for _ in 0..100 {
        abandoned(request()).await;
    }
    assert_eq!(served.working.available_permits(), 0);
    drop(hold);
    assert_eq!(request().await.status(), 200);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_request_is_answered_without_disclosing_host_files(
        path in "/[a-z0-9/.%_-]{0,60}", query in "[a-z0-9=&%.]{0,20}", header in "[ -~]{0,40}"
    ) {
        let fixture = Fixture::new(Config::default());
        let Ok(uri) = format!("{path}?{query}").parse::<axum::http::Uri>() else { return Ok(()) };
        let request = Request::builder().uri(uri).header("authorization", header).body(Body::empty()).unwrap();
        let (status, _, body) = fixture.ask(request);
        prop_assert!(status != 500 && !String::from_utf8_lossy(&body).contains("root:"), "{status}");
    }
}
