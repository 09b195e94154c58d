"""The user's tools: their phone. The agent sees nothing of it."""

from understudy.core.errors import ToolError
from understudy.core.messages import ToolCall
from understudy.core.tasks import UserAction
from understudy.domains.telecom.connectivity import Connectivity, compute_connectivity
from understudy.domains.telecom.state import NetworkMode, Phone, TelecomState
from understudy.envs.state import State
from understudy.envs.tools import Toolkit


class PhoneTools(Toolkit):
    """The tools of the user."""

    _state: TelecomState

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._number = self._state.conversation["now"].number

    def look_at_status_bar(self) -> str:
        """Look at the status bar at the top of the screen."""
        phone, works = self._phone(), self._service()
        sign = "3G" if phone.network_mode == "3G only" else "4G"
        internet = sign if works.internet else "no internet symbol"
        shown = [works.signal] if not works.can_call else ["full signal", internet]
        shown += ["the data saver symbol"] * phone.data_saver + ["the VPN symbol"] * phone.vpn
        *others, last = shown
        return f"The status bar shows {', '.join(others)} and {last}." if others else f"The status bar shows {last}."

    def look_at_settings(self) -> str:
        """Look at the network settings."""
        phone = self._phone()
        return (
            f"The settings say: mobile data {_on(phone.mobile_data)}, roaming {_on(phone.roaming)}, "
            f"network mode {phone.network_mode}, {phone.apn} access point."
        )

    def open_web_page(self) -> str:
        """Test whether the internet works."""
        return "A web page opens." if self._service().internet else "No web page opens."

    def make_call(self) -> str:
        """Test whether calls work."""
        return "A call goes through." if self._service().can_call else "The call fails."

    def run_speed_test(self) -> str:
        """Measure the speed of the internet."""
        works = self._service()
        if not works.internet:
            return "The speed test does not start."
        return "The speed test shows 60 Mbit/s." if works.fast else "The speed test shows 1 Mbit/s, which is slow."

    def set_airplane_mode(self, on: bool) -> str:
        """Turn airplane mode on or off."""
        return self._switch("airplane_mode", on)

    def toggle_airplane_mode(self) -> str:
        """Turn airplane mode on and off again."""
        self._save(self._phone().replace(airplane_mode=False))
        return "I turned airplane mode on and off again."

    def set_mobile_data(self, on: bool) -> str:
        """Turn mobile data on or off."""
        return self._switch("mobile_data", on)

    def set_roaming(self, on: bool) -> str:
        """Turn the phone's own roaming switch on or off."""
        return self._switch("roaming", on)

    def set_data_saver(self, on: bool) -> str:
        """Turn the data saver on or off."""
        return self._switch("data_saver", on, "the data saver")

    def set_vpn(self, on: bool) -> str:
        """Turn the VPN on or off."""
        return self._switch("vpn", on, "the VPN")

    def set_network_mode(self, mode: NetworkMode) -> str:
        """Choose which networks the phone uses."""
        if self._phone().network_mode == mode:
            raise ToolError(f"the network mode is already {mode}")
        self._save(self._phone().replace(network_mode=mode))
        return f"The network mode is now {mode}."

    def reset_access_point(self) -> str:
        """Reset the access point (APN) to the operator's."""
        if self._phone().apn == "standard":
            raise ToolError("the access point is already the standard one")
        self._save(self._phone().replace(apn="standard"))
        return "The access point is the standard one now."

    def restart(self) -> str:
        """Restart the phone."""
        self._repair("restart")
        return "The phone has restarted."

    def reseat_sim(self) -> str:
        """Take the SIM card out and put it back in."""
        phone = self._phone()
        if phone.sim == "loose":
            self._save(phone.replace(sim="ok"))
        self._repair("SIM card")
        return "I took the SIM card out and put it back in."

    def pay_request(self) -> str:
        """Pay the bill that the operator has sent a payment request for."""
        self._phone()
        customer = next(c for c in self._state.customers.values() if self._number in c.lines)
        for key in customer.bills:
            bill = self._state.bills[key]
            if bill.requested:
                self._state.bills[key] = bill.replace(status="paid", requested=False)
                return f"I paid {bill.total} for bill {key}."
        raise ToolError("there is no payment request on the phone")

    def _phone(self) -> Phone:
        if self._number not in self._state.phones:
            raise ToolError("there is no phone at hand")
        return self._state.phones[self._number]

    def _service(self) -> Connectivity:
        phone, line = self._phone(), self._state.lines[self._number]
        return compute_connectivity(line, self._state.plans[line.plan], phone, self._state.areas[phone.place])

    def _save(self, phone: Phone) -> None:
        self._state.phones[self._number] = phone

    def _switch(self, field: str, on: bool, name: str = "") -> str:
        phone, name = self._phone(), name or field.replace("_", " ")
        if getattr(phone, field) == on:
            raise ToolError(f"{name} is already {_on(on)}")
        self._save(phone.replace(**{field: on}))
        return f"{name[0].upper()}{name[1:]} is now {_on(on)}."

    def _repair(self, step: str) -> None:
        """Fix a stuck radio by a restart. On a broken radio, record the failed step."""
        phone = self._phone()
        if phone.radio == "stuck" and step == "restart":
            self._save(phone.replace(radio="ok"))
        if phone.radio == "broken":
            self._save(phone.replace(failed_steps=tuple(sorted({*phone.failed_steps, step}))))


def _on(on: bool) -> str:
    return "on" if on else "off"


def _user_action(tool: str, *names: str, looks: bool = False, **arguments: object) -> UserAction:
    return UserAction(call=ToolCall(name=tool, arguments=arguments), required_terms=names, read_only=looks)


_OFF, _ON = "off|disable|deactivate|disabling|turning off", "on|enable|activate|enabling|turning on|allow|toggle"
_AIRPLANE = "airplane mode|flight mode|aeroplane mode"
_TWICE = "toggle|toggling|on and off|off and on|on and then off|off again|back off|on for"
_CARD = "sim|sim card|sim tray"

STATUS_BAR = _user_action(
    "look_at_status_bar", "status bar|top of the screen|top of your screen|signal|bars|airplane mode|flight mode|vpn|"
    "data saver", looks=True,
)  # fmt: skip
SETTINGS = _user_action(
    "look_at_settings", "settings|mobile data|roaming|network mode|apn|access point", looks=True
)  # fmt: skip
WEB_PAGE = _user_action(
    "open_web_page", "web page|webpage|website|page|browse|internet access|internet connection", looks=True
)
CALL = _user_action("make_call", "a call|test call|call somebody|call someone", looks=True)
SPEED_TEST = _user_action("run_speed_test", "speed test|speed|speedtest", looks=True)
AIRPLANE_TOGGLE = _user_action("toggle_airplane_mode", _AIRPLANE, _TWICE)
AIRPLANE_OFF = _user_action("set_airplane_mode", _AIRPLANE, _OFF, on=False)
MOBILE_DATA_ON = _user_action("set_mobile_data", "mobile data|cellular data", _ON, on=True)
ROAMING_ON = _user_action("set_roaming", "roaming", _ON, on=True)
DATA_SAVER_OFF = _user_action("set_data_saver", "data saver|data saving|saver mode", _OFF, on=False)
VPN_OFF = _user_action("set_vpn", "vpn", f"{_OFF}|disconnect", on=False)
NETWORK_MODE_AUTOMATIC = _user_action(
    "set_network_mode", "network mode|network type|4g|lte", "automatic|auto|4g|lte", mode="automatic"
)
APN_RESET = _user_action("reset_access_point", "apn|access point|apns", "reset|standard|default|resetting")
RESTART = _user_action("restart", "restart|reboot|restarting|rebooting|power cycle|phone off and on|device off and on")
RESEAT_SIM = _user_action("reseat_sim", _CARD, "out|reseat|remove|reinsert|re-insert|insert|eject|reseating|removing")
PAY_BILL = _user_action("pay_request", "pay|paying|accept|approve|settle", "request|bill|payment|it")

USER_ACTIONS = (
    STATUS_BAR, SETTINGS, WEB_PAGE, CALL, SPEED_TEST, AIRPLANE_TOGGLE, AIRPLANE_OFF, MOBILE_DATA_ON, ROAMING_ON,
    DATA_SAVER_OFF, VPN_OFF, NETWORK_MODE_AUTOMATIC, APN_RESET, RESTART, RESEAT_SIM, PAY_BILL,
)  # fmt: skip
"""The actions that a user takes when asked. If two match, the first is taken."""
