//! The exported functions, by area. Each is a line or a few; what they do is elsewhere.

mod contexts;
mod copies;
mod devices;
mod events;
mod fills;
mod graphs;
mod launches;
mod managed;
mod memory;
mod modules;
mod own;
mod streams;
