//! Bar charts of the results, as SVG: horizontal bars in groups, with spread.

use std::io;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One bar.
pub struct Bar {
    /// Its length.
    pub value: f64,
    /// Lower end of the spread.
    pub low: f64,
    /// Upper end of the spread.
    pub high: f64,
    /// Words after the value.
    pub note: String,
}

/// Bars that are compared, one per series.
pub struct Group {
    /// What they show.
    pub label: String,
    /// In the order of the series.
    pub bars: Vec<Bar>,
}

/// A chart.
pub struct Chart {
    /// Above the chart.
    pub title: String,
    /// Below the title.
    pub subtitle: String,
    /// Names for the legend.
    pub series: Vec<String>,
    /// From top to bottom.
    pub groups: Vec<Group>,
    /// What the axis shows.
    pub axis: String,
    /// Whether equal steps are equal ratios.
    pub logarithmic: bool,
    /// Where a line marks "the same".
    pub reference: Option<f64>,
}

const WIDTH: i32 = 920;
const LEFT: i32 = 190;
const RIGHT: i32 = 190;
const TOP: i32 = 92;
const BAR: i32 = 17;
const GAP: i32 = 14;
const BOTTOM: i32 = 58;

const COLOURS: [RGBColor; 6] = [
    RGBColor(0x8c, 0x96, 0xa3),
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xd9, 0x7a, 0x1d),
    RGBColor(0x2f, 0x8f, 0x5b),
    RGBColor(0x8a, 0x4f, 0xa8),
    RGBColor(0xb8, 0x3a, 0x3a),
];
const INK: RGBColor = RGBColor(0x22, 0x26, 0x2b);
const FAINT: RGBColor = RGBColor(0xd5, 0xd9, 0xde);

/// From values to pixels.
struct Scale {
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let bars = || chart.groups.iter().flat_map(|g| &g.bars);
        let values = || {
            bars()
                .flat_map(|b| [b.value, b.low, b.high])
                .chain(chart.reference)
                .filter(|v| v.is_finite() && (*v > 0.0 || !chart.logarithmic))
        };
        let to = values().fold(f64::MIN_POSITIVE, f64::max);
        let from = if chart.logarithmic {
            values().fold(to, f64::min) / 1.5
        } else {
            0.0
        };
        Self {
            from,
            to: to * 1.05,
            logarithmic: chart.logarithmic,
        }
    }

    fn x(&self, value: f64) -> i32 {
        let place = if self.logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        LEFT + (place.clamp(0.0, 1.0) * f64::from(WIDTH - LEFT - RIGHT)).round() as i32
    }

    fn ticks(&self) -> Vec<f64> {
        let decade = |v: f64| 10f64.powf(v.log10().floor());
        let mut ticks = Vec::new();
        if self.logarithmic {
            let mut step = decade(self.from);
            while step <= self.to {
                ticks.extend([1.0, 2.0, 5.0].map(|m| m * step));
                step *= 10.0;
            }
        } else {
            let mut step = decade(self.to);
            while self.to / step < 5.0 {
                step /= 2.0;
            }
            ticks.extend((0..=20).map(|i| f64::from(i) * step));
        }
        ticks.retain(|t| *t >= self.from && *t <= self.to);
        ticks
    }
}

fn chart_origin(chart: &Chart, scale: &Scale) -> i32 {
    chart.reference.map_or(LEFT, |r| scale.x(r))
}

/// Three significant digits, no more.
pub fn short(value: f64) -> String {
    match value {
        v if v.is_nan() => String::new(),
        0.0 => "0".into(),
        v if v >= 100.0 => crate::support::thousands(v.round() as u64),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

fn trimmed(value: f64) -> String {
    let text = short(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

impl Chart {
    fn height(&self) -> i32 {
        TOP + BOTTOM
            + self
                .groups
                .iter()
                .map(|g| g.bars.len() as i32 * BAR + GAP)
                .sum::<i32>()
    }

    /// Draws it into an SVG file.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let mut svg = String::new();
        self.draw(&mut svg)
            .map_err(|e| io::Error::other(format!("chart: {e}")))?;
        std::fs::write(file, svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let height = self.height();
        let area = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let text = |words: &str, at: (i32, i32), size: i32, pos: Pos, colour: RGBColor| {
            let style = ("sans-serif", size).into_font().color(&colour).pos(pos);
            area.draw(&Text::new(words.to_owned(), at, style))
        };
        let left = Pos::new(HPos::Left, VPos::Center);
        let right = Pos::new(HPos::Right, VPos::Center);
        let middle = Pos::new(HPos::Center, VPos::Center);
        text(&self.title, (16, 22), 19, left, INK)?;
        text(&self.subtitle, (16, 44), 13, left, INK)?;
        let mut x = 16;
        for (index, name) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            area.draw(&Rectangle::new([(x, 60), (x + 12, 72)], colour.filled()))?;
            text(name, (x + 18, 66), 13, left, INK)?;
            x += 18 + 8 * name.len() as i32 + 22;
        }

        let scale = Scale::of(self);
        let floor = height - BOTTOM;
        // A ratio grows away from "the same", to the left where it is better.
        let origin = chart_origin(self, &scale);
        for tick in scale.ticks() {
            let x = scale.x(tick);
            area.draw(&PathElement::new(
                vec![(x, TOP - 6), (x, floor)],
                FAINT.stroke_width(1),
            ))?;
            text(&trimmed(tick), (x, floor + 12), 12, middle, INK)?;
        }
        text(&self.axis, (LEFT, floor + 36), 13, left, INK)?;

        let mut y = TOP;
        for group in &self.groups {
            let centre = y + group.bars.len() as i32 * BAR / 2;
            text(&group.label, (LEFT - 10, centre), 13, right, INK)?;
            for (index, bar) in group.bars.iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                let line = y + BAR / 2;
                y += BAR;
                if !bar.value.is_finite() {
                    continue;
                }
                let corners = [(origin, line - 6), (scale.x(bar.value), line + 6)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                let ends = [scale.x(bar.low), scale.x(bar.high)];
                let spread = vec![(ends[0], line), (ends[1], line)];
                area.draw(&PathElement::new(spread, INK.stroke_width(1)))?;
                for end in ends {
                    let tip = vec![(end, line - 3), (end, line + 3)];
                    area.draw(&PathElement::new(tip, INK.stroke_width(1)))?;
                }
                let after = ends[1].max(origin) + 7;
                let words = format!("{} {}", short(bar.value), bar.note);
                text(words.trim_end(), (after, line), 12, left, INK)?;
            }
            y += GAP;
        }
        if let Some(reference) = self.reference {
            let x = scale.x(reference);
            area.draw(&PathElement::new(
                vec![(x, TOP - 6), (x, floor)],
                INK.stroke_width(2),
            ))?;
        }
        area.present()?;
        Ok(())
    }
}
