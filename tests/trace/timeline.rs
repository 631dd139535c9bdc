//! The picture. It shows every op, its arrows lead from an op to the wait for it, and any text may
//! be in it.

use crate::support::block_on;
use crate::traces::recorded;
use roxmltree::{Document, Node};
use serde_json::Value;
use std::time::Duration;
use warpline::ops::data::InMemory;
use warpline::prelude::*;
use warpline::trace::{HostTrack, Picture, Recorder};

/// Returns a runtime and its device, whose ops run on the thread that waits for them.
fn seeded() -> (Runtime, Device) {
    let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    (runtime, device)
}

fn svg(timeline: Picture) -> String {
    let mut svg = Vec::new();
    timeline.write_svg(&mut svg).unwrap();
    String::from_utf8(svg).unwrap()
}

fn html(timeline: Picture) -> String {
    let mut html = Vec::new();
    timeline.write_html(&mut html).unwrap();
    String::from_utf8(html).unwrap()
}

/// Returns the ops in a picture's metadata.
fn data(document: &Document) -> Value {
    let metadata = document.descendants().find(|node| node.has_tag_name("metadata")).unwrap();
    serde_json::from_str(metadata.text().unwrap()).unwrap()
}

fn group<'a>(document: &'a Document, id: &str) -> Vec<Node<'a, 'a>> {
    let group = document.descendants().find(|node| node.attribute("id") == Some(id)).unwrap();
    group.children().filter(Node::is_element).collect()
}

fn number(node: &Node, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

fn title<'a>(node: &Node<'a, 'a>) -> &'a str {
    node.children().find(|child| child.has_tag_name("title")).and_then(|title| title.text()).unwrap()
}

/// Returns the row labels from top to bottom, and the names of their groups.
fn labels(document: &Document) -> (Vec<String>, Vec<String>) {
    let of = |class: &str| {
        let texts = document.descendants().filter(|node| node.attribute("class") == Some(class));
        texts.map(|text| text.text().unwrap().to_owned()).collect()
    };
    (of("label"), of("group"))
}

#[test]
fn an_arrow_leads_from_the_end_of_an_op_to_the_end_of_the_wait_for_it() {
    let recorder = recorded(|_| {
        let (_runtime, device) = seeded();
        let [copy, compute] = ["copy", "compute"].map(|label| device.stream().label(label).build().unwrap());
        let x = copy.alloc::<f32>(1 << 16).unwrap();
        drop(copy.fill(&x, 1.0));
        drop(copy.fill(&x, 2.0));
        let filled = copy.record_event();
        drop(copy.call(|| ()));
        compute.wait_event(&filled);
        drop(compute.read(&x));
        device.synchronize().blocking_wait().unwrap();
    });
    let svg = svg(recorder.picture());
    let document = Document::parse(&svg).unwrap();
    assert_eq!(labels(&document), (vec!["copy".to_owned(), "compute".to_owned()], vec!["cpu:0".to_owned()]));

    let bars = group(&document, "bars");
    let bar = |row: &str, ticket: &str| {
        let is_it = |bar: &&Node| {
            bar.attribute("data-row") == Some(row) && bar.attribute("data-ticket") == Some(ticket)
        };
        *bars.iter().find(is_it).unwrap_or_else(|| panic!("no bar of ticket {ticket} in row {row}"))
    };
    let [arrow]: [Node; 1] = group(&document, "arrows").try_into().unwrap();
    assert_eq!((arrow.attribute("data-from"), arrow.attribute("data-to")), (Some("0:2"), Some("1:1")));
    let (fill, wait) = (bar("0", "2"), bar("1", "1"));
    assert!(
        title(&fill).starts_with("fill: ")
            && title(&fill).contains("\ncopy, ticket 2\ntests/trace/timeline.rs:")
    );
    assert!(title(&wait).starts_with("wait_event: held "), "{}", title(&wait));
    assert!(title(&arrow).starts_with("wait_event on compute waits for copy, ticket 2\n"));
    // M x1 y1 C … x2 y2
    let path: Vec<f64> = arrow
        .attribute("d")
        .unwrap()
        .split(|c: char| c.is_ascii_alphabetic() || c == ' ')
        .filter_map(|number| number.parse().ok())
        .collect();
    let end = |bar: &Node| number(bar, "x") + number(bar, "width");
    // A bar that would be too narrow to be seen is drawn a little wider.
    assert!((path[0] - end(&fill)).abs() < 0.8 && (path[6] - end(&wait)).abs() < 0.8, "{path:?}");
    assert_eq!((path[1], path[7]), (number(&fill, "y") + number(&fill, "height"), number(&wait, "y")));

    let data = data(&document);
    let wait = &data["tracks"][1]["ops"][0];
    assert_eq!((&wait[0], &wait[9]), (&Value::from(1), &serde_json::json!([0, 2])));

    let mut json = Vec::new();
    recorder.write(&mut json).unwrap();
    let trace: Value = serde_json::from_slice(&json).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let edge = |phase: &str| events.iter().find(|event| event["ph"] == phase).expect("an end of the arrow");
    assert_eq!((&edge("s")["id"], &edge("s")["tid"]), (&edge("f")["id"], &Value::from(1)));
    assert_eq!(edge("f")["tid"], 2);
}

#[test]
fn every_op_is_in_the_file_however_narrow_it_is() {
    const OPS: usize = 3000;
    let recorder = recorded(|_| {
        let (_runtime, device) = seeded();
        let streams: Vec<_> = (0..3).map(|_| device.new_stream().unwrap()).collect();
        (0..OPS).for_each(|n| drop(streams[n % 3].call(|| ())));
        device.synchronize().blocking_wait().unwrap();
    });
    let svg = svg(recorder.picture());
    let document = Document::parse(&svg).unwrap();
    let data = data(&document);
    for track in data["tracks"].as_array().unwrap() {
        let ops = track["ops"].as_array().unwrap();
        let tickets: Vec<_> = ops.iter().map(|op| op[0].as_u64().unwrap()).collect();
        assert_eq!(tickets, (1..=OPS as u64 / 3).collect::<Vec<_>>());
        for op in ops {
            let [name, site] =
                [("names", 2), ("sites", 3)].map(|(list, at)| &data[list][op[at].as_u64().unwrap() as usize]);
            assert!(name == "call" && site.as_str().unwrap().starts_with("tests/trace/timeline.rs:"));
            let [started, finished] = [&op[7], &op[8]].map(|time| time.as_u64().unwrap());
            assert!(started <= finished && finished <= data["to"].as_u64().unwrap());
        }
    }
    // Each op is drawn, alone or together with its neighbours.
    let bars = group(&document, "bars").into_iter().filter(|bar| bar.has_tag_name("rect"));
    let drawn: usize = bars
        .map(|bar| match bar.attribute("data-ticket") {
            Some(_) => 1,
            None => title(&bar).split(' ').next().unwrap().parse().unwrap(),
        })
        .sum();
    assert_eq!(drawn, OPS);

    let html = html(recorder.picture());
    let json = html.split("id=\"timeline-data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let page: Value = serde_json::from_str(json).unwrap();
    assert_eq!(page, data);
}

#[test]
fn any_label_and_title_is_text_and_nothing_else() {
    let label = "</script><b title=\"x\">&amp; ]]> \u{1} \u{1f600} ' and a tail that is too long for the row";
    let recorder = recorded(|_| {
        let (_runtime, device) = seeded();
        device.stream().label(label).build().unwrap().call(|| ()).blocking_wait().unwrap();
    });
    let timeline = || recorder.picture().title("a <title> & \"more\"");
    let svg = svg(timeline());
    let document = Document::parse(&svg).unwrap();
    assert_eq!(data(&document)["tracks"][0]["label"], label);
    let text = document.descendants().find(|node| node.attribute("class") == Some("label")).unwrap();
    assert_eq!(title(&text), label.replace('\u{1}', "\u{fffd}"));
    assert!(text.text().unwrap().ends_with('…'));
    assert!(document.descendants().any(|node| node.text() == Some("a <title> & \"more\"")));

    let html = html(timeline());
    assert_eq!(html.matches("</script>").count(), 2, "the data's and the code's");
    assert_eq!(html.matches("<b").count(), 1, "the body alone");
    assert!(!html.contains("src=") && !html.contains("href="), "it needs nothing else");
}

#[test]
fn a_window_at_waits_shows_what_waited_and_for_what() {
    let recorder = loop {
        let mut waits_are_in_the_middle = false;
        let recorder = recorded(|recorder| {
            let (_runtime, device) = seeded();
            let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
            let step = || a.call(|| ()).blocking_wait().unwrap();
            step();
            let first = recorder.elapsed();
            (0..200).for_each(|_| step());
            // Without it, the work of `a` may finish before `b` would wait for it.
            let gate = a.hold().unwrap();
            for _ in 0..3 {
                a.call(|| ()).detach();
                b.wait_stream(&a);
                b.call(|| ()).detach();
            }
            let opened = recorder.elapsed();
            gate.open();
            device.synchronize().blocking_wait().unwrap();
            let waited = recorder.elapsed();
            while recorder.elapsed() < 2 * waited {
                step();
            }
            // The waits ended between `opened` and `waited`, but a loaded machine may make the rest
            // so long that they are not in the middle half.
            waits_are_in_the_middle = 3 * first + recorder.elapsed() <= 4 * opened;
        });
        if waits_are_in_the_middle {
            break recorder;
        }
    };
    let edges = |svg: &str| svg.matches(r#"class="edge""#).count() - 1; // without the legend's
    let shown = svg(recorder.picture().at_waits(Duration::from_millis(50)));
    assert!((1..=3).contains(&edges(&shown)), "{shown}");
    let nothing_waits = recorded(|_| {
        let (_runtime, device) = seeded();
        device.new_stream().unwrap().call(|| ()).blocking_wait().unwrap();
    });
    let _is_drawn = svg(nothing_waits.picture().at_waits(Duration::from_millis(50)));
}

#[test]
fn a_window_shows_what_ran_in_it() {
    let mut window = (Duration::ZERO, Duration::ZERO);
    let recorder = recorded(|recorder| {
        let (_runtime, device) = seeded();
        let stream = device.new_stream().unwrap();
        let steps = |n: u64| (0..n).for_each(|_| stream.call(|| ()).blocking_wait().unwrap());
        steps(10);
        window.0 = recorder.elapsed();
        steps(5);
        window.1 = recorder.elapsed();
        steps(10);
    });
    let svg = svg(recorder.picture().between(window.0, window.1));
    let data = data(&Document::parse(&svg).unwrap());
    let tickets: Vec<_> =
        data["tracks"][0]["ops"].as_array().unwrap().iter().map(|op| op[0].as_u64().unwrap()).collect();
    assert_eq!(tickets, [11, 12, 13, 14, 15]);
    assert_eq!(data["from"].as_u64().unwrap() as u128, window.0.as_nanos());
    assert!(svg.contains("1 stream, 5 ops; "));
}

#[test]
fn what_never_ran_is_in_the_data_and_has_no_bar() {
    let recorder = recorded(|_| {
        let (_runtime, device) = seeded();
        let stream = device.new_stream().unwrap();
        drop(stream.call(|| ()));
        drop(crate::support::break_device(&stream));
        drop(stream.call(|| ()));
        assert!(stream.synchronize().blocking_wait().is_err());
    });
    let svg = svg(recorder.picture());
    let document = Document::parse(&svg).unwrap();
    let ops = data(&document)["tracks"][0]["ops"].as_array().unwrap().clone();
    assert_eq!(ops.len(), 3);
    assert!(ops[2][7].is_null() && ops[2][8].is_null());
    assert!(svg.contains("3 ops, 1 of them unfinished"));
    assert!(group(&document, "bars").iter().all(|bar| bar.attribute("data-ticket") != Some("3")));
}

#[test]
fn runtimes_under_one_subscriber_do_not_mix() {
    let recorder = recorded(|_| {
        // Both have a stream of the same number, and ops with the same tickets.
        let (_one, first) = seeded();
        let (_other, second) = seeded();
        for device in [&first, &second, &first] {
            device.default_stream().unwrap().call(|| ()).blocking_wait().unwrap();
        }
    });
    assert_eq!(recorder.len(), 3);
    let svg = svg(recorder.picture());
    let document = Document::parse(&svg).unwrap();
    let counts: Vec<_> = data(&document)["tracks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|track| track["ops"].as_array().unwrap().len())
        .collect();
    assert_eq!(counts, [2, 1]);
    let (_, groups) = labels(&document);
    assert!(groups.iter().all(|group| group.starts_with("cpu:0 of runtime ")) && groups[0] != groups[1]);

    let mut json = Vec::new();
    recorder.write(&mut json).unwrap();
    let trace: Value = serde_json::from_slice(&json).unwrap();
    let names =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "thread_name");
    assert_eq!(names.count(), 2);
}

#[test]
fn work_of_the_host_and_the_loader_have_rows_of_their_own() {
    let recorder = recorded(|_| {
        let (_runtime, device) = seeded();
        let track = HostTrack::new("parsing");
        drop(track.span("parse"));
        drop(track.span("parse"));
        let dataset = InMemory::new(1, vec![0.0; 10], vec![0; 10]).unwrap();
        let copy = device.stream().label("copy").build().unwrap();
        let mut batches = Loader::new(dataset).batch_size(5).on(&copy).build().unwrap();
        while let Some(batch) = block_on(futures::StreamExt::next(&mut batches)) {
            batch.unwrap();
        }
    });
    let svg = svg(recorder.picture());
    let document = Document::parse(&svg).unwrap();
    let (rows, groups) = labels(&document);
    assert_eq!(
        (rows, groups),
        (
            ["parsing", "loading", "copy"].map(str::to_owned).to_vec(),
            ["host", "cpu:0"].map(str::to_owned).to_vec()
        )
    );
    let data = data(&document);
    let loading = data["tracks"][1]["ops"].as_array().unwrap();
    // Two batches, and the read that finds the end. A row is one feature and a label.
    let bytes: Vec<_> = loading.iter().map(|op| op[4].as_u64().unwrap()).collect();
    assert_eq!(bytes, [60, 60, 0]);
}

#[test]
fn the_name_of_the_file_says_which_form_and_no_other_is_taken() {
    let recorder = recorded(|_| {
        let (_runtime, device) = seeded();
        device.default_stream().unwrap().call(|| ()).blocking_wait().unwrap();
    });
    let path =
        |form: &str| std::env::temp_dir().join(format!("warpline-timeline-{}.{form}", std::process::id()));
    for (form, begins) in [("svg", "<svg "), ("html", "<!doctype html>")] {
        recorder.write_picture_file(path(form)).unwrap();
        let file = std::fs::read_to_string(path(form)).unwrap();
        std::fs::remove_file(path(form)).unwrap();
        assert!(file.starts_with(begins));
    }
    let error = recorder.write_picture_file(path("png")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(
        error
            .to_string()
            .ends_with(".png: its name ends neither in .svg nor in .html; choose one of the two")
    );
    assert!(!path("png").exists());
}

#[test]
fn nothing_recorded_is_a_picture_too() {
    let svg = svg(Recorder::new().picture());
    let document = Document::parse(&svg).unwrap();
    assert!(svg.contains("0 streams, 0 ops"));
    assert_eq!(data(&document)["tracks"], serde_json::json!([]));
    assert!(html(Recorder::new().picture()).contains("</html>"));
}
