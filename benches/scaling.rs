//! How the host cost of an op grows with the number of streams, slices and readers, over a driver
//! that runs nothing.
//!
//! Nothing is awaited, so the order check forgets nothing. Each shape is measured at several sizes.
//! The exponent is the slope of the cost over the size, fitted to their logarithms: 0 if the cost
//! does not grow, 1 if it grows like the size.

mod support;

use plotters::prelude::{
    BLACK, ChartBuilder, Color, IntoDrawingArea, IntoLogRange, LineSeries, Palette, Palette99, PathElement,
    SVGBackend, SeriesLabelPosition, TRANSPARENT, WHITE,
};
use std::cell::RefCell;
use std::time::Instant;
use support::measure::short;
use support::random::Random;
use support::{Figure, ONE, Options, Table, counting, null_driver, touch_one};
use warpline::prelude::*;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

warpline::kernel! {
    /// Reads one element: the least work that reads a buffer.
    pub unsafe fn look_at(k: f32, x: &[f32]) {
        cpu: |k, x| { std::hint::black_box(k + x[0]); },
    }
}

/// The elements of a slice: 64 bytes.
const SLICE: usize = 16;

struct Shape {
    what: &'static str,
    sizes: &'static [usize],
    goal: Goal,
    measure: fn(&Device, usize) -> Cost,
}

/// The goal for the largest size.
enum Goal {
    Ns(f64),
    /// A multiple of the cost at the smallest size.
    TimesSmallest(f64),
}

const SHAPES: [Shape; 9] = [
    Shape {
        what: "a hub and N streams: wait, read, wait",
        sizes: &[8, 32, 128, 512, 2048],
        goal: Goal::TimesSmallest(2.0),
        measure: star,
    },
    Shape {
        what: "the N-th slice of a buffer written",
        sizes: &[100, 1000, 10_000, 100_000, 1_000_000],
        goal: Goal::Ns(500.0),
        measure: append,
    },
    Shape {
        what: "the N-th slice written, and all of them read",
        sizes: &[100, 400, 1600, 6400, 16_000],
        goal: Goal::Ns(2000.0),
        measure: append_and_read,
    },
    Shape {
        what: "one of N streams reads a buffer that all read",
        sizes: &[100, 400, 1600, 6400, 10_000],
        goal: Goal::Ns(500.0),
        measure: readers,
    },
    Shape {
        what: "a write after N readers, for each reader",
        sizes: &[100, 400, 1600, 6400, 10_000],
        goal: Goal::Ns(20.0),
        measure: write_after_readers,
    },
    Shape {
        what: "a buffer dropped after N readers, for each reader",
        sizes: &[100, 400, 1600, 6400, 10_000],
        goal: Goal::Ns(20.0),
        measure: drop_after_readers,
    },
    Shape {
        what: "one of N column views written by its stream",
        sizes: &[64, 256, 1024, 4096],
        goal: Goal::Ns(1000.0),
        measure: columns,
    },
    Shape {
        what: "an op of one of N streams, a tenth of them after a random edge",
        sizes: &[8, 32, 100, 320, 1000],
        goal: Goal::Ns(400.0),
        measure: |device, count| random_edges(device, count, 10),
    },
    Shape {
        what: "an op of one of N streams, each after a random edge",
        sizes: &[8, 32, 100, 320, 1000],
        goal: Goal::Ns(1500.0),
        measure: |device, count| random_edges(device, count, 1),
    },
];

/// The cost of one run of a shape.
struct Cost {
    /// The nanoseconds of one unit.
    ns: f64,
    /// The bytes that clocks and histories hold at the end.
    held: i64,
    /// The bytes that they still hold after everything was awaited twice, and the memory was used a
    /// few times.
    left: i64,
}

/// Measures `timed`, which does `times` units, after `before`. `further` uses the memory once more.
fn cost(
    device: &Device,
    before: impl FnOnce(),
    times: usize,
    timed: impl FnOnce(),
    further: impl Fn(),
) -> Cost {
    let at_first = counting::live_bytes();
    let since = || counting::live_bytes().wrapping_sub(at_first).cast_signed();
    before();
    let start = Instant::now();
    timed();
    let ns = start.elapsed().as_nanos() as f64 / times as f64;
    let held = since();
    // A stream drops its clock when it is awaited, or waits, after all that it waited for was
    // observed.
    (0..2).for_each(|_| device.synchronize().blocking_wait().expect("it runs"));
    (0..16).for_each(|_| further());
    Cost { ns, held, left: since() }
}

fn streams(device: &Device, count: usize) -> Vec<Stream> {
    (0..count).map(|_| device.new_stream().expect("a stream")).collect()
}

/// A hub writes weights. Each stream waits for it and reads them, and the hub waits for each.
fn star(device: &Device, count: usize) -> Cost {
    let (hub, others) = (device.new_stream().expect("a stream"), streams(device, count));
    let weights = hub.alloc::<f32>(SLICE).expect("64 bytes");
    let round = || {
        hub.launch(touch_one(0.5, &weights), ONE).detach();
        for stream in &others {
            stream.wait_stream(&hub);
            stream.launch(look_at(0.5, &weights), ONE).detach();
            hub.wait_stream(stream);
        }
    };
    let rounds = (20_000 / count).max(2);
    let again = || hub.launch(look_at(0.5, &weights), ONE).detach();
    cost(device, round, rounds * count, || (0..rounds).for_each(|_| round()), again)
}

/// One stream appends to a buffer: the cost of the last tenth of the writes.
fn append(device: &Device, count: usize) -> Cost {
    appended(device, count, |_, _| ())
}

fn append_and_read(device: &Device, count: usize) -> Cost {
    appended(device, count, |stream, prefix| stream.launch(look_at(0.5, prefix), ONE).detach())
}

fn appended(device: &Device, count: usize, then: impl Fn(&Stream, &Buffer<f32>)) -> Cost {
    let stream = device.new_stream().expect("a stream");
    let whole = stream.alloc::<f32>(count * SLICE).expect("a few megabytes");
    let slices: Vec<_> = (0..count)
        .map(|at| (at * SLICE, (at + 1) * SLICE))
        .map(|(from, to)| (whole.slice(from..to).expect("inside"), whole.slice(..to).expect("inside")))
        .collect();
    let write = |(slice, prefix): &(Buffer<f32>, Buffer<f32>)| {
        stream.launch(touch_one(0.5, slice), ONE).detach();
        then(&stream, prefix);
    };
    let (first, last) = slices.split_at(count - count / 10);
    let again = || write(&slices[0]);
    cost(device, || first.iter().for_each(write), last.len(), || last.iter().for_each(write), again)
}

/// Each stream has read the buffer and reads it again.
fn readers(device: &Device, count: usize) -> Cost {
    let (hub, streams) = (device.new_stream().expect("a stream"), streams(device, count));
    let weights = written(&hub);
    let read = || streams.iter().for_each(|stream| stream.launch(look_at(0.5, &weights), ONE).detach());
    let again = || hub.launch(look_at(0.5, &weights), ONE).detach();
    cost(device, || first_reads(&hub, &streams, &weights), count, read, again)
}

/// One write, of which each reader has a share.
fn write_after_readers(device: &Device, count: usize) -> Cost {
    let (hub, streams) = (device.new_stream().expect("a stream"), streams(device, count));
    let weights = written(&hub);
    let all_read = || {
        first_reads(&hub, &streams, &weights);
        streams.iter().for_each(|stream| drop(hub.wait_stream(stream)));
    };
    let write = || hub.launch(touch_one(0.5, &weights), ONE).detach();
    cost(device, all_read, count, write, write)
}

/// Dropping a buffer that N streams have read, of which each reader has a share.
fn drop_after_readers(device: &Device, count: usize) -> Cost {
    let (hub, streams) = (device.new_stream().expect("a stream"), streams(device, count));
    let weights = RefCell::new(Some(written(&hub)));
    let read = || first_reads(&hub, &streams, weights.borrow().as_ref().expect("not dropped yet"));
    let again = || drop(hub.alloc::<f32>(SLICE).expect("64 bytes"));
    cost(device, read, count, || drop(weights.take()), again)
}

fn written(hub: &Stream) -> Buffer<f32> {
    let weights = hub.alloc::<f32>(SLICE).expect("64 bytes");
    hub.launch(touch_one(0.5, &weights), ONE).detach();
    weights
}

fn first_reads(hub: &Stream, streams: &[Stream], weights: &Buffer<f32>) {
    for stream in streams {
        stream.wait_stream(hub);
        stream.launch(look_at(0.5, weights), ONE).detach();
    }
}

/// Each stream writes its columns of one matrix, a second time.
fn columns(device: &Device, count: usize) -> Cost {
    const ROWS: usize = 4;
    let (hub, streams) = (device.new_stream().expect("a stream"), streams(device, count));
    let matrix = hub.alloc::<f32>(ROWS * count * SLICE).expect("a megabyte");
    let matrix = matrix.as_matrix(ROWS).expect("whole rows");
    let column = |at| matrix.columns(at * SLICE..(at + 1) * SLICE).expect("inside");
    let views: Vec<_> = streams.iter().enumerate().map(|(at, stream)| (stream, column(at))).collect();
    let write = || views.iter().for_each(|(stream, view)| stream.fill(view, 0.5).detach());
    let first = || {
        streams.iter().for_each(|stream| drop(stream.wait_stream(&hub)));
        write();
    };
    cost(device, first, count, write, || views[0].0.fill(&views[0].1, 0.5).detach())
}

/// Each stream writes a buffer of its own, round after round. Before one of `apart` ops the stream
/// waits for another one, drawn at random.
fn random_edges(device: &Device, count: usize, apart: usize) -> Cost {
    let (streams, random) = (streams(device, count), RefCell::new(Random(7)));
    let buffers: Vec<_> =
        streams.iter().map(|stream| stream.alloc::<f32>(SLICE).expect("64 bytes")).collect();
    let rounds = |rounds: usize| {
        let mut random = random.borrow_mut();
        for _ in 0..rounds {
            for (at, (stream, buffer)) in streams.iter().zip(&buffers).enumerate() {
                if random.below(apart) == 0 {
                    stream.wait_stream(&streams[(at + 1 + random.below(count - 1)) % count]);
                }
                stream.launch(touch_one(0.5, buffer), ONE).detach();
            }
        }
    };
    let times = (20_000 / count).max(50);
    let again = || streams[0].launch(touch_one(0.5, &buffers[0]), ONE).detach();
    cost(device, || rounds(times), times * count, || rounds(times), again)
}

/// Returns the slope of the costs over the sizes, by least squares on their logarithms.
fn exponent(costs: &[(usize, f64)]) -> f64 {
    let points: Vec<(f64, f64)> = costs.iter().map(|&(size, ns)| ((size as f64).ln(), ns.ln())).collect();
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (above, below) = points.iter().fold((0.0, 0.0), |(above, below), point| {
        (above + (point.0 - x) * (point.1 - y), below + (point.0 - x).powi(2))
    });
    above / below
}

/// Draws the curves into an SVG file.
fn draw(path: &str, curves: &[(&str, Vec<(usize, f64)>)]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, costs)| costs);
    let sizes = points().map(|point| point.0 as f64);
    let (least, most) = sizes.fold((f64::MAX, 0.0_f64), |(least, most), x| (least.min(x), most.max(x)));
    let longest = points().map(|point| point.1).fold(0.0, f64::max);
    let area = SVGBackend::new(path, (900, 500)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .margin_right(40)
        .x_label_area_size(40)
        .y_label_area_size(60)
        // Room for the legend below the curves.
        .build_cartesian_2d((least..most).log_scale(), (0.05..longest * 2.0).log_scale())?;
    let plain = |value: &f64| value.to_string();
    chart
        .configure_mesh()
        .x_desc("N")
        .y_desc("ns")
        .x_label_formatter(&plain)
        .y_label_formatter(&plain)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (at, (what, costs)) in curves.iter().enumerate() {
        let color = Palette99::pick(at).mix(1.0);
        let line = costs.iter().map(|&(size, ns)| (size as f64, ns));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
            .label(*what)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Draws the curves into the file that the variable `WARPLINE_BENCH_SVG` names, if it is set.
fn main() {
    let options = Options::from_command_line();
    let mut curves = Vec::new();
    let table = Table::new("scaling: how the host cost of an op grows (ns)");
    for shape in &SHAPES {
        let (mut costs, mut bytes) = (Vec::new(), (0, 0));
        for &size in &shape.sizes[..if options.quick { 2 } else { shape.sizes.len() }] {
            let mut rounds: Vec<f64> = (0..options.rounds(5))
                .map(|_| {
                    // A fresh runtime, because histories keep what earlier rounds left in them.
                    let (_runtime, device, _) = null_driver::runtime(false, true);
                    let Cost { ns, held, left } = (shape.measure)(&device, size);
                    bytes = (held, left);
                    ns
                })
                .collect();
            rounds.sort_by(f64::total_cmp);
            costs.push((size, rounds[rounds.len() / 2]));
        }
        let ((_, smallest), (size, largest)) = (costs[0], costs[costs.len() - 1]);
        let (goal, met) = match shape.goal {
            Goal::Ns(most) => (format!("≤ {}", short(most)), largest <= most),
            Goal::TimesSmallest(most) => {
                (format!("≤ {}", short(most * smallest)), largest <= most * smallest)
            }
        };
        for &(size, ns) in &costs[..costs.len() - 1] {
            table.report(&format!("{}, N = {size}", shape.what), "ns", ns);
        }
        let what = format!("{}, N = {size}", shape.what);
        table.row(&what, "ns", largest, &goal, None, Some(met));
        table.report(&format!("{}: exponent", shape.what), "", exponent(&costs));
        table.report(&format!("{what}: memory held"), "B", Figure::count(bytes.0));
        table.report(&format!("{what}: memory after all was awaited"), "B", Figure::count(bytes.1));
        curves.push((shape.what, costs));
    }
    if let Ok(path) = std::env::var("WARPLINE_BENCH_SVG") {
        draw(&path, &curves).expect("the file can be written");
    }
}
