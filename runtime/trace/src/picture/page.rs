//! The picture as an HTML page: the unchanged SVG, every op as JSON, and a script that redraws the
//! ops at any scale.

use super::scene::Scene;
use super::svg::{self, escaped};
use std::io::{self, Write};

const SCRIPT: &str = include_str!("zoom.js");

pub(super) fn write(scene: &Scene, data: &str, to: &mut impl Write) -> io::Result<()> {
    writeln!(
        to,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\n<style>body {{ margin: 0; background: #fff; }} svg {{ \
         display: block; max-width: 100%; height: auto; user-select: none; }}</style></head><body>",
        escaped(&scene.title)
    )?;
    svg::write(scene, None, to)?;
    writeln!(to, "<script type=\"application/json\" id=\"timeline-data\">{data}</script>")?;
    writeln!(to, "<script>\n{SCRIPT}</script>\n</body></html>")
}
