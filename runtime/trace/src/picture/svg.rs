//! Draws a scene as a self-contained SVG, without a font, script or style sheet from elsewhere.

use super::scene::{Arrow, BAR, Bar, CHARACTER, Scene, WIDTH};
use std::io::{self, Write};

const STYLE: &str = include_str!("style.css");

/// Writes the SVG, with `data` in its metadata if there is any.
pub(super) fn write(scene: &Scene, data: Option<&str>, to: &mut impl Write) -> io::Result<()> {
    let (height, title) = (scene.height, escaped(&scene.title));
    let (left, right, top, bottom) = (scene.left, scene.right, scene.top(), scene.bottom());
    writeln!(
        to,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">"#
    )?;
    if let Some(data) = data {
        writeln!(to, r#"<metadata id="timeline-data">{data}</metadata>"#)?;
    }
    writeln!(to, "<style>{STYLE}</style>")?;
    writeln!(
        to,
        r##"<defs>
<clipPath id="plot"><rect x="{}" y="0" width="{}" height="{height}"/></clipPath>
<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5" fill="#eef0f3"/><rect width="1.4" height="5" fill="#b9c0ca"/></pattern>
<marker id="head" viewBox="0 0 8 8" refX="7.2" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path d="M0.8 0.8 7.2 4 0.8 7.2z" class="head"/></marker>
</defs>"##,
        left - 1.0,
        right - left + 2.0
    )?;
    writeln!(to, r#"<rect class="paper" width="{WIDTH}" height="{height}"/>"#)?;
    writeln!(to, r#"<text class="title" x="28" y="42">{title}</text>"#)?;
    writeln!(to, r#"<text class="subtitle" x="28" y="64">{}</text>"#, escaped(&scene.subtitle))?;
    legend(scene, to)?;

    writeln!(to, r#"<g id="axis">"#)?;
    for (x, text) in &scene.ticks {
        writeln!(
            to,
            r#"<path class="grid" d="M{x:.2} {top}V{bottom}"/><text class="tick" x="{x:.2}" y="{}">{text}</text>"#,
            top - 9.0
        )?;
    }
    writeln!(to, "</g>\n<g>")?;
    for group in &scene.groups {
        writeln!(to, r#"<text class="group" x="28" y="{}">{}</text>"#, group.y, escaped(&group.name))?;
    }
    for row in &scene.rows {
        let (y, text, whole) = (row.y, escaped(&row.label), escaped(&row.name));
        writeln!(to, r#"<rect class="lane" x="{left}" y="{y}" width="{}" height="{BAR}"/>"#, right - left)?;
        writeln!(to, r#"<text class="label" x="40" y="{}">{text}<title>{whole}</title></text>"#, y + 14.0)?;
    }
    writeln!(to, r#"</g><g id="bars" clip-path="url(#plot)">"#)?;
    for (at, row) in scene.rows.iter().enumerate() {
        for one in &row.bars {
            bar(one, at, row.y, to)?;
        }
    }
    writeln!(to, r#"</g><g id="arrows" clip-path="url(#plot)">"#)?;
    for one in &scene.arrows {
        arrow(one, to)?;
    }
    writeln!(to, "</g></svg>")
}

fn legend(scene: &Scene, to: &mut impl Write) -> io::Result<()> {
    let (mut x, y) = (28.0, 90.0);
    writeln!(to, r#"<g class="legend">"#)?;
    for kind in &scene.kinds {
        let text = match *kind {
            "host" => "host work",
            "wait" => "held by a wait",
            "other" => "other ops",
            kind => kind,
        };
        writeln!(
            to,
            r#"<rect class="{kind}" x="{x}" y="{}" width="12" height="12" rx="2"/><text x="{}" y="{y}">{text}</text>"#,
            y - 10.0,
            x + 18.0
        )?;
        x += 18.0 + text.len() as f64 * CHARACTER + 22.0;
    }
    if !scene.arrows.is_empty() {
        let mid = y - 4.0;
        writeln!(
            to,
            r#"<path class="edge" d="M{x} {mid}h24" marker-end="url(#head)"/><text x="{}" y="{y}">a stream waits for another</text>"#,
            x + 32.0
        )?;
    }
    writeln!(to, "</g>")
}

fn bar(bar: &Bar, row: usize, y: f64, to: &mut impl Write) -> io::Result<()> {
    let Bar { x, width, kind, .. } = bar;
    let ticket = bar.ticket.map_or_else(String::new, |ticket| format!(r#" data-ticket="{ticket}""#));
    let round = if *width >= 6.0 { r#" rx="2""# } else { "" };
    write!(
        to,
        r#"<rect class="{kind}" x="{x:.2}" y="{y}" width="{width:.2}" height="{BAR}"{round} data-row="{row}"{ticket}><title>{}</title></rect>"#,
        escaped(&bar.tooltip)
    )?;
    if let Some(text) = &bar.text {
        write!(
            to,
            r#"<text class="in" x="{:.2}" y="{}">{}</text>"#,
            x + width / 2.0,
            y + 14.0,
            escaped(text)
        )?;
    }
    writeln!(to)
}

fn arrow(arrow: &Arrow, to: &mut impl Write) -> io::Result<()> {
    let ((x1, y1), (x2, y2)) = (arrow.start, arrow.end);
    let bend = (y2 - y1) / 2.0;
    let (from, into) = (arrow.from, arrow.to);
    writeln!(
        to,
        r#"<path class="edge" d="M{x1:.2} {y1}C{x1:.2} {} {x2:.2} {} {x2:.2} {y2}" marker-end="url(#head)" data-from="{}:{}" data-to="{}:{}"><title>{}</title></path>"#,
        y1 + bend,
        y2 - bend,
        from.0,
        from.1,
        into.0,
        into.1,
        escaped(&arrow.tooltip)
    )
}

/// Escapes text for use between tags or quotes. A character that XML cannot hold becomes a
/// replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
