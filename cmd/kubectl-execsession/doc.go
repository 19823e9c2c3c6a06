// Command kubectl-execsession is the plugin `kubectl execsession`: it makes sessions, runs
// commands in them and looks after what runs there.
//
// See package app for the commands, their output and their exit codes.
package main
