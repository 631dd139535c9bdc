//! The time axis: ticks at round times, and times formatted for people.

const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1)];

/// Returns the largest unit that is at most `nanos` long.
fn unit(nanos: u64) -> (&'static str, u64) {
    *UNITS.iter().find(|(_, length)| nanos >= *length).unwrap_or(&UNITS[3])
}

/// Formats a time with three digits or more: `12.3 µs`, `840 ns`.
pub(super) fn time(nanos: u64) -> String {
    let (name, length) = unit(nanos);
    let value = nanos as f64 / length as f64;
    let digits = if length == 1 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {name}")
}

/// Returns 0 and at most `most` further round times up to `span`, in nanoseconds and as text. All
/// texts have the same unit.
pub(super) fn ticks(span: u64, most: u64) -> Vec<(u64, String)> {
    let mut step = 1_u64;
    let mut factors = [2, 5, 10].iter().cycle();
    let mut base = 1_u64;
    while span / step > most.max(1) {
        let factor = factors.next().expect("it cycles");
        step = base.saturating_mul(*factor);
        if *factor == 10 {
            base = step;
        }
    }
    let (name, length) = unit(step.max(span.min(step * 2)));
    let count = span / step;
    (0..=count)
        .map(|n| {
            let at = n * step;
            let digits = if step.is_multiple_of(length) {
                0
            } else if (step * 10).is_multiple_of(length) {
                1
            } else {
                2
            };
            (at, format!("{:.digits$} {name}", at as f64 / length as f64))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them() {
        let of = [0, 840, 1_000, 12_340, 999_900, 1_500_000, 2_000_000_000].map(time);
        assert_eq!(of, ["0 ns", "840 ns", "1.00 µs", "12.3 µs", "1000 µs", "1.50 ms", "2.00 s"]);
    }

    #[test]
    fn ticks_are_round_and_as_many_as_fit() {
        let texts = |span, most| ticks(span, most).into_iter().map(|(_, text)| text).collect::<Vec<_>>();
        assert_eq!(texts(1_000, 4), ["0.0 µs", "0.5 µs", "1.0 µs"]);
        assert_eq!(texts(45_000, 5), ["0 µs", "10 µs", "20 µs", "30 µs", "40 µs"]);
        assert_eq!(
            texts(1_300_000, 7),
            ["0 µs", "200 µs", "400 µs", "600 µs", "800 µs", "1000 µs", "1200 µs"]
        );
        for span in [0, 1, 7, 99, 1_234, 987_654, u64::MAX / 4, u64::MAX] {
            let ticks = ticks(span, 8);
            assert!(!ticks.is_empty() && ticks.len() <= 9, "{span}: {ticks:?}");
            assert!(ticks.iter().all(|(at, _)| *at <= span));
        }
    }
}
