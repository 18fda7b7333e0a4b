use super::*;
use crate::profile::{Frame, StackProfile, Totals};
use crate::render::sample;
use std::collections::BTreeMap;

fn html(profile: &Profile) -> String {
    let mut out = Vec::new();
    write(profile, &sample::options(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A profile whose names try to break out of their context.
fn hostile(name: &str) -> Profile {
    let frame = Frame {
        symbol: name.into(),
        module: format!("/lib/{name}"),
        file: name.into(),
        line: 1,
        ..Frame::default()
    };
    let mut profile = sample::empty_profile();
    profile.process.comm = name.into();
    profile.process.exe = name.into();
    profile.ended = Some(name.into());
    profile.lost = BTreeMap::from([(name.to_owned(), 1)]);
    profile.stacks = vec![StackProfile {
        frames: sample::shared([frame.clone(), frame.clone(), frame]),
        live: Totals { bytes: 1, objects: 1 },
        ..sample::empty_stack()
    }];
    profile
}

#[test]
fn names_stay_text_wherever_they_stand() {
    for name in [
        "<script>alert(1)</script>",
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "\"><img src=x onerror=alert(1)>",
        "\" onload=\"alert(1)",
        "\\u003cb>\u{2028}",
        "</style><b>",
    ] {
        let (page, plain) = (html(&hostile(name)), html(&hostile("plain")));
        let tags = |page: &str| page.matches('<').count();
        assert_eq!(tags(&page), tags(&plain), "{name} adds a tag");
        let quotes = |page: &str| page.split("<script type").next().unwrap().matches('"').count();
        assert_eq!(quotes(&page), quotes(&plain), "{name} adds a quote");
        let (markup, data) = page.split_once("<script type").unwrap();
        assert!(!markup.contains(name), "{name} stands there as it is");
        let (data, _) = data.split_once("</script>").unwrap();
        assert_eq!(data.matches('<').count(), 0, "{data}");
    }
}

#[test]
fn the_data_reads_back_as_the_names_were() {
    let name = "</script><b & '\"\\>";
    let page = html(&hostile(name));
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    let data: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(data["names"][0][0], name);
    assert_eq!(data["stacks"][0], serde_json::json!([[0, 0, 0], 1, 1, 3]));
}

#[test]
fn the_policy_allows_the_pages_own_script_and_style_alone() {
    let page = html(&sample::profile());
    let (_, script) = page.rsplit_once("<script>").unwrap();
    let (script, _) = script.split_once("</script>").unwrap();
    let hash = STANDARD.encode(Sha256::digest(script));
    assert!(page.contains(&format!("script-src 'sha256-{hash}'; style-src 'sha256-")), "{}", policy());
    assert!(page.contains("default-src 'none'"));
    for forbidden in ["http://", "https://", "style=\"", "unsafe-inline", "eval("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn the_conclusion_comes_first_and_what_leaks_is_marked() {
    let page = html(&sample::judged());
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}\n{page}"));
    let order =
        ["id=\"conclusion\"", "Look at ", "leaking: ", "id=\"graph\"", "class=\"cards\"", "id=\"verdicts\""];
    assert!(order.map(at).is_sorted());
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    let data: serde_json::Value = serde_json::from_str(json).unwrap();
    let verdicts: Vec<_> = data["stacks"].as_array().unwrap().iter().map(|stack| stack[3].clone()).collect();
    assert_eq!(verdicts[..2], [0, 1]);
}

#[test]
fn everything_a_reader_asks_for_is_there() {
    let page = html(&sample::profile());
    for part in [
        "leaky <small>pid 4242</small>",
        "2026-01-15 10:00:00 to 10:04:12",
        "1,537,052 bytes in 26 objects",
        "new_node ← list_push",
        "stale_pending",
        "How it was measured",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert!(html(&sample::empty_profile()).contains("Nothing lives."));
}

#[test]
fn a_page_on_a_java_heap_begins_with_the_classes() {
    let mut profile = sample::empty_profile();
    profile.coverage.source = SourceKind::JavaHeap;
    profile.stacks = vec![StackProfile {
        frames: sample::shared([Frame::of_class("shop.Order<b>".to_owned())]),
        allocated: Totals { bytes: 3 << 20, objects: 1_000 },
        ..sample::empty_stack()
    }];

    let page = html(&profile);

    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing: {page}"));
    assert!(place("3.0 MiB allocated in the Java heap") < place("<td><code>shop.Order&lt;b&gt;</code></td>"));
    assert!(place("shop.Order&lt;b&gt;") < place("id=\"graph\""));
}
