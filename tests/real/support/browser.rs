//! A headless Chromium, controlled through the pipe of its debugging protocol.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::bounded::LONG;
use super::process::Process;

/// Width and height of the window, as on a laptop.
const WINDOW: (u32, u32) = (1280, 900);

/// A browser with one page.
pub(crate) struct Browser {
    requests: File,
    answers: Receiver<Value>,
    last_id: u64,
    session: String,
    /// Errors on the page, and its network requests.
    complaints: Vec<String>,
    loads: Vec<String>,
    /// True if the last requested page has loaded.
    has_loaded: bool,
    /// Text for the next prompt of the page.
    answer_to_prompt: String,
    _process: Process,
    _folder: TempDir,
}

impl Browser {
    /// Opens a file.
    pub(crate) fn open(page: &Path) -> Self {
        Self::visit(&format!("file://{}", page.display()))
    }

    /// Opens a page.
    pub(crate) fn visit(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipes = ["requests", "answers"].map(|name| folder.path().join(name));
        for pipe in &pipes {
            mkfifo(pipe, Mode::S_IRWXU).unwrap();
        }
        let (width, height) = WINDOW;
        let script = format!(
            "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
             --window-size={width},{height} --user-data-dir=\"$1/profile\" --remote-debugging-pipe about:blank \
             3<\"$1/requests\" 4>\"$1/answers\""
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(folder.path());
        let process =
            Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        let requests = OpenOptions::new().write(true).open(&pipes[0]).unwrap();
        let answers = read(File::open(&pipes[1]).unwrap());
        let mut browser = Self {
            requests,
            answers,
            last_id: 0,
            session: String::new(),
            complaints: Vec::new(),
            loads: Vec::new(),
            has_loaded: false,
            answer_to_prompt: String::new(),
            _process: process,
            _folder: folder,
        };
        browser.start(url);
        browser
    }

    fn start(&mut self, url: &str) {
        let target = self.ask("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.ask("Target.attachToTarget", &target);
        attached["sessionId"].as_str().unwrap().clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.ask(&format!("{domain}.enable"), &json!({}));
        }
        let (width, height) = WINDOW;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
        self.go(url);
    }

    /// Navigates to another page.
    pub(crate) fn go(&mut self, url: &str) {
        self.loads.clear();
        self.has_loaded = false;
        // The answer and the page may arrive in either order.
        self.ask("Page.navigate", &json!({ "url": url }));
        while !self.has_loaded {
            self.next("Page.navigate");
        }
        assert_eq!(self.loads, [url], "the page loads something from elsewhere");
    }

    /// Evaluates an expression on the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let answer =
            self.ask("Runtime.evaluate", &json!({ "expression": expression, "returnByValue": true }));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Moves the pointer to the middle of the element that an expression selects, and optionally clicks.
    pub(crate) fn point(&mut self, element: &str, click: bool) {
        let middle = format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{ block: 'center' }}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let middle = self.evaluate(&middle);
        let kinds: &[&str] =
            if click { &["mouseMoved", "mousePressed", "mouseReleased"] } else { &["mouseMoved"] };
        for kind in kinds {
            let event = json!({
                "type": kind, "x": middle[0], "y": middle[1], "clickCount": 1,
                "button": if *kind == "mouseMoved" { "none" } else { "left" },
            });
            self.ask("Input.dispatchMouseEvent", &event);
        }
    }

    /// Clicks on the element that an expression selects, and answers the prompt of the page.
    pub(crate) fn click_and_answer(&mut self, element: &str, answer: &str) {
        answer.clone_into(&mut self.answer_to_prompt);
        self.point(element, true);
        assert!(self.answer_to_prompt.is_empty(), "the page has asked nothing");
    }

    /// Types into the focused element.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.ask("Input.insertText", &json!({ "text": text }));
    }

    /// Presses a key that types nothing.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.ask("Input.dispatchKeyEvent", &json!({ "type": kind, "key": key }));
        }
    }

    /// Fails if the page has thrown, logged an error, violated its policy, or made a request.
    pub(crate) fn assert_quiet(&mut self) {
        // All messages before this answer have been read.
        self.evaluate("0");
        assert!(self.complaints.is_empty(), "{:#?}", self.complaints);
        assert_eq!(self.loads.len(), 1, "{:#?}", self.loads);
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        let id = self.send(method, parameters);
        loop {
            let message = self.next(method);
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }

    fn send(&mut self, method: &str, parameters: &Value) -> u64 {
        self.last_id += 1;
        let mut request = json!({ "id": self.last_id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            request["sessionId"] = json!(self.session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        self.last_id
    }

    fn next(&mut self, what_for: &str) -> Value {
        let message = self.answers.recv_timeout(LONG).unwrap_or_else(|_| panic!("no answer to {what_for}"));
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                self.complaints.push(parameters.to_string());
            }
            Some("Page.loadEventFired") => self.has_loaded = true,
            // The page is blocked until the prompt is answered.
            Some("Page.javascriptDialogOpening") => {
                let text = std::mem::take(&mut self.answer_to_prompt);
                self.send("Page.handleJavaScriptDialog", &json!({ "accept": true, "promptText": text }));
            }
            Some("Runtime.consoleAPICalled") => self.complaints.push(parameters["args"].to_string()),
            Some("Network.requestWillBeSent") => {
                self.loads.push(parameters["request"]["url"].as_str().unwrap().to_owned());
            }
            _ => {}
        }
        message
    }
}

/// Reads messages, each terminated by a zero byte.
fn read(pipe: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else { continue };
            // Nobody receives once the test is over.
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    receiver
}
